// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import corev1 "k8s.io/api/core/v1"

// PodOptions are what a pool's spec says of the pods of one memory pool or compute pool, beside what the operator gives them. Pods of compute shards are
// replaced when it changes. Memory nodes keep their pods: pods that run get labels, annotations and tolerations that are added, and everything else reaches
// the pods that are made later.
type PodOptions struct {
	// Labels of the pods, beside the operator's own. Memory nodes that run get labels that are added or changed, and keep labels that are removed.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, !format.qualifiedName().validate(k).hasValue())",message="a label's name is [prefix/]name with at most 63 letters, digits, '-', '_' and '.' in name"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('farpool.dev/') && !k.startsWith('sidecar.farpool.dev/') && !(k in ['app.kubernetes.io/name', 'app.kubernetes.io/instance', 'app.kubernetes.io/managed-by']))",message="the operator sets the labels farpool.dev/*, app.kubernetes.io/name, app.kubernetes.io/instance and app.kubernetes.io/managed-by itself: choose other names"
	Labels map[string]LabelValue `json:"labels,omitempty"`

	// Annotations of the pods, beside the operator's own. Memory nodes that run get annotations that are added or changed, and keep annotations that
	// are removed.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, !format.qualifiedName().validate(k).hasValue())",message="an annotation's name is [prefix/]name with at most 63 letters, digits, '-', '_' and '.' in name"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('farpool.dev/') && !k.startsWith('sidecar.farpool.dev/') && k != 'k8s.v1.cni.cncf.io/networks')",message="the operator sets the annotations farpool.dev/* itself, and k8s.v1.cni.cncf.io/networks from spec.network.attachment: choose other names"
	Annotations map[string]string `json:"annotations,omitempty"`

	// NodeSelector of the pods. A change moves only pods of memory nodes that have not found a place yet.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// Tolerations of the pods.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Tolerations []Toleration `json:"tolerations,omitempty"`

	// Affinity of the pods to Kubernetes nodes and to other pods, as Kubernetes has it.
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`

	// TopologySpreadConstraints of the pods, as Kubernetes has them, in place of the operator's own, which spreads all memory nodes, or all compute
	// shards, of the pool over Kubernetes nodes as far as possible. A constraint without labelSelector counts these same pods.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`

	// PriorityClassName of the pods. If it is left out, memory nodes have the class that the operator was started with (--memory-priority-class), and
	// compute shards the cluster's default.
	// +optional
	PriorityClassName ObjectName `json:"priorityClassName,omitempty"`

	// RuntimeClassName of the pods; the cluster's default if it is left out.
	// +optional
	RuntimeClassName ObjectName `json:"runtimeClassName,omitempty"`

	// SchedulerName that finds places for the pods; Kubernetes' own scheduler if it is left out.
	// +optional
	SchedulerName ObjectName `json:"schedulerName,omitempty"`

	// ServiceAccountName that the pods run as, in the pool's namespace. It is for what a cluster ties to ServiceAccounts, such as security context
	// constraints and pull secrets: no token is mounted.
	// +optional
	ServiceAccountName ObjectName `json:"serviceAccountName,omitempty"`

	// SecurityContext says who chooses the user and group of the pods: Managed is 65532 for both; with Platform, the platform assigns them, as OpenShift
	// does. If it is left out, the operator's own setting counts. Pods over RDMA run as root in any case.
	// +optional
	SecurityContext PodSecurity `json:"securityContext,omitempty"`
}

// LabelValue is the value of a label.
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$`
type LabelValue string

// ObjectName is the name of an object of Kubernetes.
// +kubebuilder:validation:MaxLength=253
// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="the name of an object has lower-case letters, digits, '-' and '.', and begins and ends with a letter or digit"
type ObjectName string

// PodSecurity says who chooses user and group of a pod.
// +kubebuilder:validation:Enum=Managed;Platform
type PodSecurity string

const (
	// PodSecurityManaged is the data plane's own user and group.
	PodSecurityManaged PodSecurity = "Managed"
	// PodSecurityPlatform leaves them to the platform.
	PodSecurityPlatform PodSecurity = "Platform"
)

// OrNone returns the options; if there are none, empty ones.
func (o *PodOptions) OrNone() *PodOptions {
	if o == nil {
		return &PodOptions{}
	}
	return o
}
