// SPDX-License-Identifier: Apache-2.0

package injector

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
)

// Mounted shows the certificate that a platform, such as the Operator Lifecycle Manager, mounts into the injector's pods, and reads it again when it changes. The
// platform tells the API server the authority. Its methods may be called from any goroutine.
type Mounted struct {
	watcher *certwatcher.CertWatcher
	clock   clock.PassiveClock

	mutex sync.Mutex
	leaf  *x509.Certificate
}

// NewMounted reads tls.crt and tls.key of a directory; Start watches them.
func NewMounted(directory string, clock clock.PassiveClock, metrics *Metrics) (*Mounted, error) {
	watcher, err := certwatcher.New(filepath.Join(directory, "tls.crt"), filepath.Join(directory, "tls.key"))
	if err != nil {
		return nil, fmt.Errorf("read the webhook's certificate, tls.crt and tls.key, in directory %s: %w", directory, err)
	}
	m := &Mounted{watcher: watcher, clock: clock}
	// The watcher calls this once now, and again for each certificate that it reads.
	watcher.RegisterCallback(func(shown tls.Certificate) {
		m.mutex.Lock()
		defer m.mutex.Unlock()
		m.leaf = shown.Leaf
		metrics.expires(shown.Leaf.NotAfter)
	})
	return m, nil
}

// NeedLeaderElection says that each replica shows its certificate.
func (m *Mounted) NeedLeaderElection() bool { return false }

// Start reads the files whenever they change, until the context ends.
func (m *Mounted) Start(ctx context.Context) error { return m.watcher.Start(ctx) }

// Certificate returns what the webhook shows.
func (m *Mounted) Certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return m.watcher.GetCertificate(hello)
}

// Ready says why the API server cannot call the webhook; nil: it can.
func (m *Mounted) Ready() error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.clock.Now().Before(m.leaf.NotAfter) {
		return nil
	}
	return fmt.Errorf("the webhook's certificate has ended at %s: the platform that mounts it has to renew it", m.leaf.NotAfter.Format(time.RFC3339))
}
