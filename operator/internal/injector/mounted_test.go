// SPDX-License-Identifier: Apache-2.0

package injector

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	clocktesting "k8s.io/utils/clock/testing"

	"farpool.dev/farpool/operator/internal/pki"
)

// mount writes a certificate of a new authority into a directory, as a platform does, and returns what trusts it.
func mount(t *testing.T, directory string, now time.Time) *x509.CertPool {
	t.Helper()
	authority, _, err := pki.RenewAuthority(nil, "platform", now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	data, _, _, err := authority.RenewCertificate(nil, pki.Request{DNSNames: []string{"localhost"}, Server: true}, now)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{pki.KeyPrivateKey, pki.KeyCertificate} {
		path := filepath.Join(directory, key)
		if err := errors.Join(os.WriteFile(path+".new", data[key], 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(data[pki.KeyCABundle])
	return roots
}

// The webhook shows what the platform mounts, and what it mounts later; nothing of it is the injector's to write.
func TestAMountedCertificateIsShown(t *testing.T) {
	directory, metrics, at := t.TempDir(), NewMetrics(prometheus.NewRegistry()), clocktesting.NewFakeClock(time.Now())
	if _, err := NewMounted(directory, at, metrics); err == nil || !strings.Contains(err.Error(), "tls.crt and tls.key, in directory "+directory) {
		t.Errorf("an empty directory: %v", err)
	}
	roots := mount(t, directory, at.Now())
	// No client for an API server: a mounted certificate needs none.
	source, err := Options{Directory: directory, Metrics: metrics, Clock: at}.source(nil)
	if err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	server := NewServer("127.0.0.1", port)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- server.Start(ctx) }()
	go func() { ended <- source.Start(ctx) }()
	handshake := func(roots *x509.CertPool) func(context.Context) error {
		return func(ctx context.Context) error {
			dialer := tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS12}}
			connection, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
			if err != nil {
				return err
			}
			return connection.Close()
		}
	}
	eventually(t, "a server without a source shows something", func(ctx context.Context) error {
		if err := handshake(roots)(ctx); err == nil || !strings.Contains(err.Error(), "tls: ") {
			return fmt.Errorf("no refusal: %w", err)
		}
		return nil
	})
	server.source.Store(&source)
	eventually(t, "the mounted certificate is not shown", handshake(roots))
	renewed := mount(t, directory, at.Now())
	eventually(t, "the renewed certificate is not shown", handshake(renewed))
	if err := source.Ready(); err != nil || testutil.ToFloat64(metrics.renewed) <= float64(at.Now().Unix()) {
		t.Errorf("ready: %v; the metric says %v", err, testutil.ToFloat64(metrics.renewed))
	}
	at.Step(10 * 365 * 24 * time.Hour)
	if err := source.Ready(); err == nil || !strings.Contains(err.Error(), "has to renew it") {
		t.Errorf("after its end: %v", err)
	}
	stop()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
