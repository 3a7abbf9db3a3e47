// SPDX-License-Identifier: Apache-2.0

package injector

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/inject"
)

// indexListing finds the pools that list a namespace for sidecars.
const indexListing = "sidecarNamespace"

// syncWithin is how long a probe waits for the cache; a kubelet gives it a second by default.
const syncWithin = 500 * time.Millisecond

// CacheOptions keeps the cache to KVPools of some namespaces, or of all if none is named.
func CacheOptions(namespaces []string) cache.Options {
	options := cache.Options{
		ReaderFailOnMissingInformer: true,
		DefaultTransform: func(object any) (any, error) {
			if pool, ok := object.(*v1alpha1.KVPool); ok {
				// Nothing else of a pool is read.
				pool.ManagedFields, pool.Status.Conditions, pool.Status.Processes = nil, nil, nil
			}
			return object, nil
		},
	}
	for _, namespace := range namespaces {
		if options.DefaultNamespaces == nil {
			options.DefaultNamespaces = map[string]cache.Config{}
		}
		options.DefaultNamespaces[namespace] = cache.Config{}
	}
	return options
}

// pools are the KVPools of a cache.
type pools struct{ reader client.Reader }

func (p pools) Named(namespace, name string) *v1alpha1.KVPool {
	pool := &v1alpha1.KVPool{}
	if err := p.reader.Get(context.Background(), types.NamespacedName{Namespace: namespace, Name: name}, pool); err != nil {
		return nil // a cache fails for nothing else
	}
	return pool
}

func (p pools) Listing(namespace string) []*v1alpha1.KVPool {
	var list v1alpha1.KVPoolList
	if err := p.reader.List(context.Background(), &list, client.MatchingFields{indexListing: namespace}); err != nil {
		return nil
	}
	listing := make([]*v1alpha1.KVPool, 0, len(list.Items))
	for i := range list.Items {
		listing = append(listing, &list.Items[i])
	}
	slices.SortFunc(listing, func(a, b *v1alpha1.KVPool) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return listing
}

// Options are the injector's.
type Options struct {
	Names    Names
	Settings inject.Settings
	Metrics  *Metrics
	Clock    clock.WithTicker
}

// Server returns the server of the webhook. Its certificate comes from what SetUp returns.
func Server(host string, port int, certificates func() *Certificates) webhook.Server {
	return webhook.NewServer(webhook.Options{Host: host, Port: port, TLSOpts: []func(*tls.Config){func(config *tls.Config) {
		config.MinVersion = tls.VersionTLS12
		config.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if c := certificates(); c != nil {
				return c.Certificate(hello)
			}
			return nil, errNotLooked
		}
	}}})
}

// SetUp adds the webhook and its certificates to a manager.
func SetUp(mgr manager.Manager, options Options) (*Certificates, error) {
	ctx := context.Background()
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.KVPool{}, indexListing, func(object client.Object) []string {
		pool, ok := object.(*v1alpha1.KVPool)
		if !ok || pool.Spec.Sidecars == nil {
			return nil
		}
		var names []string
		for _, namespace := range pool.Spec.Sidecars.Namespaces {
			names = append(names, namespace.Name)
		}
		return names
	}); err != nil {
		return nil, fmt.Errorf("index KVPools by the namespaces that they list: %w", err)
	}
	certificates := NewCertificates(mgr.GetClient(), mgr.GetAPIReader(), options.Names, options.Clock, options.Metrics)
	if err := mgr.Add(certificates); err != nil {
		return nil, err
	}
	if err := mgr.AddReadyzCheck("pools", func(request *http.Request) error {
		ctx, cancel := context.WithTimeout(request.Context(), syncWithin)
		defer cancel()
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return errors.New("the KVPools are not known yet: the API server is slow, or refuses to list them")
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if err := mgr.AddReadyzCheck("certificate", func(*http.Request) error { return certificates.Ready() }); err != nil {
		return nil, err
	}
	handler := NewHandler(pools{mgr.GetCache()}, options.Settings, options.Metrics, options.Clock, mgr.GetLogger().WithName("injector"))
	mgr.GetWebhookServer().Register(Path, handler)
	return certificates, nil
}
