// SPDX-License-Identifier: Apache-2.0

package injector

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	admissionregistrationv1ac "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/pki"
)

const (
	// lookEvery is how often a replica looks whether another has renewed the authority, and whether anything is due.
	lookEvery = 15 * time.Second
	// lookAgain is how soon it looks after a failure, and lookTakes how long it may take.
	lookAgain = 2 * time.Second
	lookTakes = 10 * time.Second
)

// Certificates keep the webhook's certificate, and tell the API server by which authority to check it. Replicas share the authority, in a Secret that nobody else
// reads; each signs a certificate of its own, which it keeps in memory.
type Certificates struct {
	client   client.Client
	live     client.Reader
	secret   types.NamespacedName
	webhook  string
	dnsNames []string
	clock    clock.WithTicker
	metrics  *Metrics

	mutex   sync.Mutex
	shown   *tls.Certificate
	data    pki.Data
	trouble error
}

// errNotLooked is the trouble before the first look.
var errNotLooked = errors.New("the webhook has no certificate yet: it looks for the authority's Secret")

// Names are where certificates are kept and shown.
type Names struct {
	// Secret of the authority.
	Secret types.NamespacedName
	// Webhook is the name of the MutatingWebhookConfiguration.
	Webhook string
	// DNSNames by which the API server calls the webhook.
	DNSNames []string
}

// NewCertificates returns ones that Start renews. live reads past any cache.
func NewCertificates(c client.Client, live client.Reader, names Names, clock clock.WithTicker, metrics *Metrics) *Certificates {
	return &Certificates{client: c, live: live, secret: names.Secret, webhook: names.Webhook, dnsNames: names.DNSNames, clock: clock, metrics: metrics, trouble: errNotLooked}
}

// NeedLeaderElection says that each replica has a certificate.
func (c *Certificates) NeedLeaderElection() bool { return false }

// Start looks again and again, until the context ends.
func (c *Certificates) Start(ctx context.Context) error {
	for {
		err := c.look(ctx)
		c.mutex.Lock()
		told := c.trouble != nil && err != nil && c.trouble.Error() == err.Error()
		c.trouble = err
		c.mutex.Unlock()
		wait := lookEvery
		if err != nil {
			wait = lookAgain
			if !told {
				log.FromContext(ctx).Error(err, "the webhook's certificate is not as it should be; trying again")
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.clock.After(wait):
		}
	}
}

// Ready says why the API server cannot call the webhook; nil: it can.
func (c *Certificates) Ready() error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.shown != nil && !errors.Is(c.trouble, errNotLooked) && c.clock.Now().Before(c.shown.Leaf.NotAfter) {
		return nil // an API server that does not answer for a while takes nothing away
	}
	return c.trouble
}

// Certificate returns what the webhook shows.
func (c *Certificates) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.shown == nil {
		return nil, c.trouble
	}
	return c.shown, nil
}

func (c *Certificates) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTakes)
	defer cancel()
	authority, err := c.authority(ctx)
	if err != nil {
		return err
	}
	c.mutex.Lock()
	held := c.data
	c.mutex.Unlock()
	data, changed, _, err := authority.RenewCertificate(held, pki.Request{DNSNames: c.dnsNames, Server: true}, c.clock.Now())
	if err != nil {
		return fmt.Errorf("make the webhook's certificate: %w", err)
	}
	// The API server trusts an authority before anything is shown that it has signed.
	if err := c.tell(ctx, authority.Bundle()); err != nil {
		return err
	}
	if !changed {
		return nil
	}
	shown, err := tls.X509KeyPair(data[pki.KeyCertificate], data[pki.KeyPrivateKey])
	if err != nil {
		return fmt.Errorf("read the webhook's new certificate: %w", err)
	}
	if shown.Leaf == nil {
		if shown.Leaf, err = x509.ParseCertificate(shown.Certificate[0]); err != nil {
			return fmt.Errorf("read the webhook's new certificate: %w", err)
		}
	}
	c.mutex.Lock()
	c.shown, c.data = &shown, data
	c.mutex.Unlock()
	c.metrics.expires(shown.Leaf.NotAfter)
	log.FromContext(ctx).Info("the webhook has a new certificate", "until", shown.Leaf.NotAfter)
	return nil
}

// authority returns the replicas' common authority, which is written down if it is new or renewed.
func (c *Certificates) authority(ctx context.Context) (*pki.Authority, error) {
	secret := &corev1.Secret{}
	err := c.live.Get(ctx, c.secret, secret)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return nil, fmt.Errorf("read Secret %s of the webhook's authority: %w", c.secret, err)
	}
	authority, changed, err := pki.RenewAuthority(secret.Data, "webhook of namespace "+c.secret.Namespace, c.clock.Now(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("read the webhook's authority in Secret %s: %w", c.secret, err)
	}
	switch {
	case missing:
		err = c.client.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.secret.Namespace, Name: c.secret.Name, Labels: map[string]string{"app.kubernetes.io/name": "farpool-injector"}},
			Type:       corev1.SecretTypeOpaque, Data: authority.Data(),
		})
	case changed:
		secret.Data = authority.Data()
		err = c.client.Update(ctx, secret) // of the version that was read: another replica may be faster
	}
	if err != nil {
		return nil, fmt.Errorf("write Secret %s of the webhook's authority: %w", c.secret, err)
	}
	return authority, nil
}

// tell writes an authority's bundle into the webhook configuration, if it is not there.
func (c *Certificates) tell(ctx context.Context, bundle []byte) error {
	configuration := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := c.live.Get(ctx, types.NamespacedName{Name: c.webhook}, configuration); err != nil {
		return fmt.Errorf("read MutatingWebhookConfiguration %s: %w: install the chart again if it is gone", c.webhook, err)
	}
	applied := admissionregistrationv1ac.MutatingWebhookConfiguration(c.webhook).WithResourceVersion(configuration.ResourceVersion)
	right := true
	for _, webhook := range configuration.Webhooks {
		right = right && bytes.Equal(webhook.ClientConfig.CABundle, bundle)
		applied.WithWebhooks(admissionregistrationv1ac.MutatingWebhook().WithName(webhook.Name).
			WithClientConfig(admissionregistrationv1ac.WebhookClientConfig().WithCABundle(bundle...)))
	}
	if right {
		return nil
	}
	if err := c.client.Apply(ctx, applied, client.FieldOwner(v1alpha1.SidecarsFieldManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("write the authority into MutatingWebhookConfiguration %s: %w", c.webhook, err)
	}
	return nil
}
