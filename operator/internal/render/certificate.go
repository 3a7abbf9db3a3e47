// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"

	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"

	"farpool.dev/farpool/api/v1alpha1"
)

// CertificateApplyConfiguration is a Certificate of cert-manager, as far as the operator writes it. The module of cert-manager would bring hundreds of others.
type CertificateApplyConfiguration struct {
	metav1ac.TypeMetaApplyConfiguration `json:",inline"`
	Metadata                            *metav1ac.ObjectMetaApplyConfiguration `json:"metadata"`
	Spec                                CertificateSpec                        `json:"spec"`
}

// CertificateSpec has the fields of cert-manager's by the same names.
type CertificateSpec struct {
	SecretName     string         `json:"secretName"`
	SecretTemplate SecretTemplate `json:"secretTemplate"`
	DNSNames       []string       `json:"dnsNames"`
	Usages         []string       `json:"usages"`
	Duration       string         `json:"duration,omitempty"`
	RenewBefore    string         `json:"renewBefore,omitempty"`
	IssuerRef      IssuerRef      `json:"issuerRef"`
}

// SecretTemplate is what cert-manager writes into the metadata of the Secret.
type SecretTemplate struct {
	Labels map[string]string `json:"labels"`
}

// IssuerRef names an issuer.
type IssuerRef struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`
	Group string `json:"group"`
}

// IsApplyConfiguration and the other methods are those of generated apply configurations.
func (c *CertificateApplyConfiguration) IsApplyConfiguration()  {}
func (c *CertificateApplyConfiguration) GetAPIVersion() *string { return c.APIVersion }
func (c *CertificateApplyConfiguration) GetKind() *string       { return c.Kind }
func (c *CertificateApplyConfiguration) GetNamespace() *string  { return c.Metadata.Namespace }
func (c *CertificateApplyConfiguration) GetName() *string       { return c.Metadata.Name }

// Issuer is the issuer that signs the certificate of the Redis port, with defaults for what is left out.
func (p Pool) Issuer() IssuerRef {
	issuer := ptr.Deref(p.Spec.Security.TLS().Issuer, v1alpha1.IssuerReference{})
	return IssuerRef{Name: string(issuer.Name), Kind: cmp.Or(issuer.Kind, "Issuer"), Group: cmp.Or(issuer.Group, v1alpha1.CertificateKind.Group)}
}

// Certificate asks cert-manager for the certificate of the Redis port. The label on its Secret lets the operator read that.
func Certificate(pool Pool) *CertificateApplyConfiguration {
	name, tls := v1alpha1.IssuedName(pool.Name), pool.Spec.Security.TLS()
	return &CertificateApplyConfiguration{
		TypeMetaApplyConfiguration: *metav1ac.TypeMeta().WithAPIVersion(v1alpha1.CertificateKind.GroupVersion().String()).WithKind(v1alpha1.CertificateKind.Kind),
		Metadata:                   metav1ac.ObjectMeta().WithName(name).WithNamespace(pool.Namespace).WithLabels(pool.labels()).WithOwnerReferences(pool.owner()),
		Spec: CertificateSpec{
			SecretName:     name,
			SecretTemplate: SecretTemplate{Labels: pool.PoolLabel()},
			DNSNames:       pool.RESPHosts(),
			Usages:         []string{"digital signature", "key encipherment", "server auth"},
			Duration:       string(tls.Duration),
			RenewBefore:    string(tls.RenewBefore),
			IssuerRef:      pool.Issuer(),
		},
	}
}
