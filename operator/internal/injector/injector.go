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
	"sync/atomic"
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

// Source is where the webhook's certificate comes from: Certificates, or Mounted.
type Source interface {
	manager.Runnable
	// Certificate returns what the webhook shows.
	Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Ready says why the API server cannot call the webhook; nil: it can.
	Ready() error
}

// Options are the injector's.
type Options struct {
	// Names of what Certificates keep; they are not read if Directory is set.
	Names Names
	// Directory has the certificate that a platform mounts and renews. Empty: the injector makes its own.
	Directory string
	Settings  inject.Settings
	Metrics   *Metrics
	Clock     clock.WithTicker
}

// Server is the server of the webhook. It shows no certificate until SetUp has given it a source.
type Server struct {
	webhook.Server
	source atomic.Pointer[Source]
}

// NewServer returns a server that listens on a port when its manager starts.
func NewServer(host string, port int) *Server {
	s := &Server{}
	s.Server = webhook.NewServer(webhook.Options{Host: host, Port: port, TLSOpts: []func(*tls.Config){func(config *tls.Config) {
		config.MinVersion = tls.VersionTLS12
		config.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if source := s.source.Load(); source != nil {
				return (*source).Certificate(hello)
			}
			return nil, errNotLooked
		}
	}}})
	return s
}

// source returns where the options say that the certificate comes from.
func (o Options) source(mgr manager.Manager) (Source, error) {
	if o.Directory != "" {
		return NewMounted(o.Directory, o.Clock, o.Metrics)
	}
	return NewCertificates(mgr.GetClient(), mgr.GetAPIReader(), o.Names, o.Clock, o.Metrics), nil
}

// SetUp adds the webhook, and the source of its certificate, to the server's manager.
func SetUp(mgr manager.Manager, server *Server, options Options) (Source, error) {
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
	source, err := options.source(mgr)
	if err != nil {
		return nil, err
	}
	if err := mgr.Add(source); err != nil {
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
	if err := mgr.AddReadyzCheck("certificate", func(*http.Request) error { return source.Ready() }); err != nil {
		return nil, err
	}
	handler := NewHandler(pools{mgr.GetCache()}, options.Settings, options.Metrics, options.Clock, mgr.GetLogger().WithName("injector"))
	// Asking the manager for the server is what makes it start the server.
	mgr.GetWebhookServer().Register(Path, handler)
	server.source.Store(&source)
	return source, nil
}
