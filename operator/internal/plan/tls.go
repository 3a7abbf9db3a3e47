// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/pki"
)

// A certificate of the Redis port may be of people: in a Secret that compute shards mount, and read again when it changes. The operator reads it only if people have
// given it the pool's label.

// secretPatience is how long a pod may take to start before the Secret that it mounts is taken for missing.
const secretPatience = time.Minute

// checkPeoplesTLS finds what is wrong with the Secret of people that has the certificate of the Redis port.
func (d *decision) checkPeoplesTLS() {
	tls, secret := d.Pool.Spec.Security.TLS(), d.PeoplesTLS
	if tls.Mode != v1alpha1.TLSFromSecret {
		return
	}
	if secret == nil {
		if waiting := d.waitingPods(); len(waiting) > 0 {
			d.certificates = finding{v1alpha1.ReasonTLSSecretInvalid, fmt.Sprintf(
				"pods of compute shards have a Kubernetes node and do not start (%s): see that Secret %s, which spec.security.resp.tls.secretName names, exists in namespace %s with tls.crt and tls.key; with the label %s=%s on it, the operator says what it lacks",
				some(waiting), tls.SecretName, d.Pool.Namespace, v1alpha1.LabelPool, d.Pool.Name)}
		}
		return
	}
	if wrong := d.wrongWithServed("which spec.security.resp.tls.secretName names"); wrong.reason != "" {
		d.certificates = wrong
	}
}

// wrongWithServed checks the Secret with the certificate of the Redis port, and returns no reason if nothing is wrong.
func (d *decision) wrongWithServed(whose string) finding {
	ends, err := pki.CheckServed(d.PeoplesTLS.Data, d.Now)
	if err != nil {
		return finding{v1alpha1.ReasonTLSSecretInvalid, fmt.Sprintf("Secret %s, %s: %v. Compute shards that run keep the certificate that they have, and others do not start", d.PeoplesTLS.Name, whose, err)}
	}
	d.due(ends)
	return finding{}
}

// waitingPods are the pods of compute shards that have had a Kubernetes node for long and no container that has started.
func (d *decision) waitingPods() []string {
	var waiting []string
	for _, pod := range d.ComputePods {
		if pod.Status.Phase != corev1.PodPending || pod.Spec.NodeName == "" || !pod.DeletionTimestamp.IsZero() {
			continue
		}
		if patient := pod.CreationTimestamp.Add(secretPatience); d.Now.Before(patient) {
			d.due(patient)
		} else {
			waiting = append(waiting, pod.Name)
		}
	}
	slices.Sort(waiting)
	return waiting
}

// authorities returns the certificates by which applications check the one of the Redis port; nil: they need none. It returns false if these are not known: the
// Secret is not made yet, or the operator may not read it.
func (d *decision) authorities() (certificates []byte, known bool) {
	switch d.Pool.Spec.Security.TLS().Mode {
	case v1alpha1.TLSGenerated:
		certificates = d.secret(d.pool.RESPTLSSecretName())[pki.KeyCABundle]
		return certificates, certificates != nil
	case v1alpha1.TLSFromSecret, v1alpha1.TLSFromIssuer:
		if d.PeoplesTLS == nil {
			return nil, false
		}
		return d.PeoplesTLS.Data[pki.KeyCABundle], true
	}
	return nil, true
}
