// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/render"
)

// An issuer of cert-manager may sign the certificate of the Redis port. The operator makes a Certificate, and cert-manager the Secret, which compute shards mount as they
// mount one of people. Nothing watches Certificates, because a cluster may lack the kind: the operator looks at them again after a while.

const (
	// issuerRetry is how soon the operator looks again at what cert-manager has not done yet.
	issuerRetry = 10 * time.Second
	// issuedLook is how soon it looks again at a Certificate that is Ready: somebody may have deleted it.
	issuedLook = 10 * time.Minute
)

// fromIssuer says whether an issuer signs the certificate of the Redis port.
func (d *decision) fromIssuer() bool {
	return d.Pool.Spec.Security.TLS().Mode == v1alpha1.TLSFromIssuer
}

// checkIssuedTLS finds what is wrong with the certificate that an issuer signs.
func (d *decision) checkIssuedTLS() {
	if !d.fromIssuer() {
		return
	}
	wait := issuedLook
	if wrong := d.wrongWithIssued(); wrong.reason != "" {
		d.certificates, wait = wrong, issuerRetry
	}
	d.due(d.Now.Add(wait))
}

// wrongWithIssued returns the first thing that keeps a certificate of an issuer from being served, and no reason if there is none.
func (d *decision) wrongWithIssued() finding {
	name, issuer := v1alpha1.IssuedName(d.Pool.Name), d.pool.Issuer()
	const kept = "Compute shards that run keep the certificate that they have, and others do not start"
	switch {
	case d.Issued.Missing:
		return finding{v1alpha1.ReasonCertManagerMissing, fmt.Sprintf("spec.security.resp.tls.issuer names %s %s, and this cluster has no Certificates of %s: install cert-manager, or set another spec.security.resp.tls.mode. %s",
			issuer.Kind, issuer.Name, v1alpha1.CertificateKind.GroupVersion(), kept)}
	case d.Issued.Forbidden != "":
		return finding{v1alpha1.ReasonCertManagerForbidden, fmt.Sprintf("the operator may not use Certificates: set certManager.enabled of its chart, or set another spec.security.resp.tls.mode. The API server says: %s", d.Issued.Forbidden)}
	case d.Issued.Certificate == nil && d.paused:
		return finding{v1alpha1.ReasonPaused, fmt.Sprintf("there is no Certificate %s yet, and the operator may not make one now", name)}
	case d.Issued.Certificate == nil:
		return finding{v1alpha1.ReasonCertificateNotReady, fmt.Sprintf("Certificate %s was not there a moment ago: the operator makes it, and looks again", name)}
	}
	if said := d.notReady(); said != "" {
		return finding{v1alpha1.ReasonCertificateNotReady, fmt.Sprintf("Certificate %s, which %s %s signs, is not Ready: %s. See kubectl -n %s describe certificate,certificaterequest, and the issuer's own conditions. %s",
			name, issuer.Kind, issuer.Name, said, d.Pool.Namespace, kept)}
	}
	if d.PeoplesTLS == nil {
		return finding{v1alpha1.ReasonCertificateNotReady, fmt.Sprintf("Certificate %s is Ready, and there is no Secret %s with the label %s=%s yet: cert-manager makes it. %s", name, name, v1alpha1.LabelPool, d.Pool.Name, kept)}
	}
	return d.wrongWithServed("which cert-manager keeps")
}

// notReady returns what cert-manager says about a Certificate that is not Ready; empty: it is.
func (d *decision) notReady() string {
	ready := meta.FindStatusCondition(d.Issued.Conditions, "Ready")
	if ready == nil {
		return "cert-manager has not said anything about it yet"
	}
	if ready.Status == metav1.ConditionTrue {
		if ready.ObservedGeneration != 0 && ready.ObservedGeneration < d.Issued.Certificate.GetGeneration() {
			return "cert-manager has not looked at its latest spec yet"
		}
		return ""
	}
	said := fmt.Sprintf("%s: %s", ready.Reason, ready.Message)
	if issuing := meta.FindStatusCondition(d.Issued.Conditions, "Issuing"); issuing != nil && issuing.Status == metav1.ConditionFalse && issuing.Message != "" {
		said += fmt.Sprintf(" (%s: %s)", issuing.Reason, issuing.Message)
	}
	return said
}

// certificate makes the Certificate, if the cluster has the kind and the operator may use it.
func (d *decision) certificate() {
	if d.fromIssuer() && !d.Issued.Missing && d.Issued.Forbidden == "" {
		d.Apply = append(d.Apply, render.Certificate(d.pool))
	}
}

// certificateRemoval deletes a Certificate that no issuer is to sign any more. The Secret stays, as cert-manager leaves it.
func (d *decision) certificateRemoval() {
	certificate := d.Issued.Certificate
	if certificate != nil && !d.fromIssuer() && certificate.GetDeletionTimestamp().IsZero() && !d.mounted(certificate.GetName()) {
		d.Delete = append(d.Delete, certificate)
	}
}

// certificateReference names the Certificate that the pool has, or is to have. As long as the status names one, the operator looks for it.
func (d *decision) certificateReference() *v1alpha1.CertificateReference {
	if d.fromIssuer() || d.Issued.Certificate != nil || d.Issued.Forbidden != "" {
		return &v1alpha1.CertificateReference{Name: v1alpha1.IssuedName(d.Pool.Name)}
	}
	return nil
}
