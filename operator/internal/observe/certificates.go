// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/api/v1alpha1"
)

// Issued is what the API server says about the Certificate of cert-manager that a pool has, or is to have.
type Issued struct {
	// Certificate is nil if the pool has none.
	Certificate *unstructured.Unstructured
	// Conditions are those of the Certificate.
	Conditions []metav1.Condition
	// Missing says that the API server knows no Certificates.
	Missing bool
	// Forbidden says that the operator may not read Certificates, and why.
	Forbidden string
}

// issued asks the API server itself: a watch of a kind that a cluster may lack would keep the cache from ever being filled. It asks only for pools that have a
// Certificate, or are to have one.
func issued(ctx context.Context, live client.Reader, pool *v1alpha1.KVPool) (Issued, error) {
	if pool.Spec.Security.TLS().Mode != v1alpha1.TLSFromIssuer && pool.Status.Certificate == nil {
		return Issued{}, nil
	}
	certificate := &unstructured.Unstructured{}
	certificate.SetGroupVersionKind(v1alpha1.CertificateKind)
	name := types.NamespacedName{Namespace: pool.Namespace, Name: v1alpha1.IssuedName(pool.Name)}
	switch err := live.Get(ctx, name, certificate); {
	// The client may know the kind from a time when the cluster had it. The answer then is not about an object.
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return Issued{Missing: true}, nil
	case apierrors.IsNotFound(err):
		return Issued{}, nil
	case apierrors.IsForbidden(err):
		return Issued{Forbidden: err.Error()}, nil
	case err != nil:
		return Issued{}, fmt.Errorf("look for Certificate %s: %w", name, err)
	case !metav1.IsControlledBy(certificate, pool):
		return Issued{}, nil
	}
	var said struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(certificate.Object, &said); err != nil {
		return Issued{}, fmt.Errorf("read the status of Certificate %s: %w", name, err)
	}
	return Issued{Certificate: certificate, Conditions: said.Status.Conditions}, nil
}
