// SPDX-License-Identifier: Apache-2.0

// Package sidecars makes, in the namespaces that pools list, the Secrets that sidecars begin with, and counts sidecars. It is the check that counts: an injector
// may be asked by anybody, and a pod without this Secret gets nowhere.
package sidecars

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/inject"
	"farpool.dev/farpool/operator/internal/pki"
	"farpool.dev/farpool/operator/internal/render"
	"farpool.dev/farpool/operator/internal/shardmap"
)

// lifetime of a sidecar's certificate: nobody can take it back.
const lifetime = 7 * 24 * time.Hour

// observed is what is known of one pool.
type observed struct {
	pool *v1alpha1.KVPool
	// authority and secret are what the operator keeps for the pool; nil: nothing yet.
	authority, secret map[string][]byte
	// held are the Secrets of namespaces, by namespace.
	held map[string]*corev1.Secret
	// pods with a sidecar of this pool, by namespace.
	pods map[string]int32
	// outdated are those of them that were made for another image or other limits.
	outdated map[string]int32
	// clusterDomain is what names of Services end with.
	clusterDomain string
	// watches says whether the operator may write into a namespace.
	watches func(namespace string) bool
	now     time.Time
	random  io.Reader
}

// decision is what to do.
type decision struct {
	// secrets are made or changed, by namespace, and removed are the ones that nobody is to have any more.
	secrets map[string]*corev1.Secret
	removed []*corev1.Secret
	// status of each listed namespace, as it is if all Secrets are written.
	status []v1alpha1.SidecarNamespaceStatus
	// renewAt is when a certificate is due; zero: none is.
	renewAt time.Time
}

// decide is pure.
func decide(o observed) decision {
	d := decision{secrets: map[string]*corev1.Secret{}}
	paused := o.pool.Spec.Management == v1alpha1.ManagementPaused
	authority, awaited := o.signer()
	var listed []v1alpha1.SidecarNamespace
	if o.pool.Spec.Sidecars != nil {
		listed = o.pool.Spec.Sidecars.Namespaces
	}
	for _, entry := range listed {
		held := o.held[entry.Name]
		status := v1alpha1.SidecarNamespaceStatus{Name: entry.Name, Sidecars: o.pods[entry.Name], Outdated: o.outdated[entry.Name], State: v1alpha1.SidecarsPending}
		pending := func(reason, format string, arguments ...any) {
			status.Reason, status.Message = reason, fmt.Sprintf(format, arguments...)
		}
		switch {
		case !o.watches(entry.Name):
			pending(v1alpha1.ReasonNamespaceNotWatched, "the operator may not write into namespace %s: add it to the chart's watchNamespaces, or take it off spec.sidecars.namespaces", entry.Name)
		case awaited != nil:
			status.Reason, status.Message = awaited.reason, awaited.message
		case paused && held == nil:
			pending(v1alpha1.ReasonPaused, "the pool is paused, and the namespace has no credentials yet: set spec.management to Managed")
		default:
			o.issue(&d, authority, entry, held, &status)
		}
		d.status = append(d.status, status)
	}
	for namespace, secret := range o.held {
		// Nothing of a paused pool is changed; what is left over goes when it is managed again.
		if o.pool.Spec.SidecarNamespace(namespace) == nil && !paused && secret.DeletionTimestamp.IsZero() {
			d.removed = append(d.removed, secret)
		}
	}
	return d
}

type finding struct{ reason, message string }

// signer returns the pool's authority, or why nothing can be signed.
func (o *observed) signer() (*pki.Authority, *finding) {
	if template := o.pool.Status.Template; template == nil {
		return nil, &finding{v1alpha1.ReasonCredentialsAwaited, "the pool has no image yet: it has just been made, or its spec cannot be served (condition SpecValid)"}
	} else if !render.OwnIdentities(template.Version) {
		return nil, &finding{v1alpha1.ReasonUnsupported, fmt.Sprintf("the pool was made from pod template %d, whose memory nodes cannot tell a namespace's sidecars from others: create it anew", template.Version)}
	}
	authority, err := pki.HeldAuthority(o.authority, o.random)
	if err != nil {
		return nil, &finding{v1alpha1.ReasonIssueFailed, err.Error()}
	}
	if authority == nil || len(o.secret[render.KeyMapKey]) != shardmap.KeyBytes {
		return nil, &finding{v1alpha1.ReasonCredentialsAwaited, "the pool has no certificate authority or no map key yet (condition CertificatesReady)"}
	}
	return authority, nil
}

// issue renews what a namespace has, or makes it.
func (o *observed) issue(d *decision, authority *pki.Authority, entry v1alpha1.SidecarNamespace, held *corev1.Secret, status *v1alpha1.SidecarNamespaceStatus) {
	request := pki.Request{
		Identity: pki.Identity{PoolUID: string(o.pool.UID), Role: pki.RoleClient, Name: v1alpha1.SidecarIdentity(entry.Name)},
		Client:   true, Lifetime: lifetime, Sessions: entry.MaxSidecars,
	}
	var before map[string][]byte
	if held != nil {
		before = held.Data
	}
	data, _, renewAt, err := authority.RenewCertificate(before, request, o.now)
	if err != nil {
		status.Reason, status.Message = v1alpha1.ReasonIssueFailed, err.Error()
		return
	}
	if d.renewAt.IsZero() || renewAt.Before(d.renewAt) {
		d.renewAt = renewAt
	}
	data = maps.Clone(data)
	data[inject.ConfigKey] = []byte(o.config())
	if held == nil || !maps.EqualFunc(before, data, bytes.Equal) {
		d.secrets[entry.Name] = o.secretOf(entry.Name, data)
	}
	status.State = v1alpha1.SidecarsReady
	if inject.NearlySpent(status.Sidecars, entry.MaxSidecars) {
		status.Reason = v1alpha1.ReasonSidecarBudgetNearlySpent
		status.Message = fmt.Sprintf("pods of namespace %s have %d of the %d sidecars that they may have, and beyond that pods are refused: raise maxSidecars in spec.sidecars.namespaces, and spec.limits.maxSessions if there are too few sessions", entry.Name, status.Sidecars, entry.MaxSidecars)
	}
}

func (o *observed) secretOf(namespace string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: v1alpha1.SidecarSecretName(o.pool.Name, o.pool.UID, namespace),
			Labels: map[string]string{
				v1alpha1.LabelPool: o.pool.Name, v1alpha1.LabelPoolUID: string(o.pool.UID), v1alpha1.LabelPoolNamespace: o.pool.Namespace,
				"app.kubernetes.io/name": "farpool", "app.kubernetes.io/instance": o.pool.Name, "app.kubernetes.io/managed-by": v1alpha1.FieldManager,
			},
		},
		Type: corev1.SecretTypeOpaque, Data: data,
	}
}

// config is what all sidecars of a namespace begin with. A pod's own flags are in its container.
func (o *observed) config() string {
	var file strings.Builder
	text := func(key, value string) { fmt.Fprintf(&file, "%s = %q\n", key, value) }
	text("pool-uid", string(o.pool.UID))
	text("bootstrap", fmt.Sprintf("dns:%s.%s.svc.%s:%d", render.Pool{Name: o.pool.Name}.NodesServiceName(), o.pool.Namespace, o.clusterDomain, render.PortSession))
	text("map-key", base64.StdEncoding.EncodeToString(shardmap.PublicKey(o.secret[render.KeyMapKey])))
	text("tls-ca", inject.CredentialsDirectory+"/"+pki.KeyCABundle)
	text("tls-cert", inject.CredentialsDirectory+"/"+pki.KeyCertificate)
	text("tls-key", inject.CredentialsDirectory+"/"+pki.KeyPrivateKey)
	for _, limit := range inject.Limits(o.pool) {
		file.WriteString(limit + "\n")
	}
	text("log-format", "json")
	return file.String()
}

// statusWith is the status after the Secrets were written, or not: failures say why, by namespace.
func (d *decision) statusWith(failures map[string]finding) *v1alpha1.SidecarsStatus {
	status := &v1alpha1.SidecarsStatus{}
	for _, entry := range d.status {
		if failed, ok := failures[entry.Name]; ok {
			entry.State, entry.Reason, entry.Message = v1alpha1.SidecarsPending, failed.reason, failed.message
		}
		if len(entry.Message) > 1024 {
			entry.Message = strings.ToValidUTF8(entry.Message[:1021], "") + "..."
		}
		status.Count += entry.Sidecars
		status.Namespaces = append(status.Namespaces, entry)
	}
	if status.Namespaces == nil {
		return nil
	}
	return status
}

// tiding is an event for people who look at the pool.
type tiding struct {
	kind, reason, action, note string
}

// news are the events about what has changed since a status was written.
func news(before, now *v1alpha1.SidecarsStatus, removed []*corev1.Secret) []tiding {
	var events []tiding
	if now != nil {
		for _, entry := range now.Namespaces {
			was := before.OfNamespace(entry.Name)
			if was == nil {
				was = &v1alpha1.SidecarNamespaceStatus{}
			}
			switch {
			case entry.State == v1alpha1.SidecarsReady && was.State != entry.State:
				events = append(events, tiding{corev1.EventTypeNormal, v1alpha1.ReasonSidecarsAllowed, "Issue", fmt.Sprintf("pods of namespace %s can have sidecars", entry.Name)})
			case entry.Reason != "" && entry.Reason != was.Reason && entry.Reason != v1alpha1.ReasonCredentialsAwaited:
				events = append(events, tiding{corev1.EventTypeWarning, entry.Reason, "Issue", entry.Message})
			}
		}
	}
	for _, secret := range removed {
		events = append(events, tiding{corev1.EventTypeNormal, v1alpha1.ReasonSidecarsRevoked, "Revoke", fmt.Sprintf(
			"namespace %s has lost its credentials: pods get no sidecars there any more, and certificates that they hold end within %d days", secret.Namespace, lifetime/(24*time.Hour))})
	}
	return events
}
