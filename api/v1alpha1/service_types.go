// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import corev1 "k8s.io/api/core/v1"

// ServiceSpec says how applications reach the pool's Service, which has the pool's name. No edit of it touches a pod.
// +kubebuilder:validation:XValidation:rule="!has(self.loadBalancerClass) || self.type == 'LoadBalancer'",message="spec.service.loadBalancerClass goes with type LoadBalancer: set the type, or leave the class out"
// +kubebuilder:validation:XValidation:rule="!has(self.loadBalancerSourceRanges) || self.type == 'LoadBalancer'",message="spec.service.loadBalancerSourceRanges goes with type LoadBalancer: set the type, or leave the ranges out"
// +kubebuilder:validation:XValidation:rule="!has(self.nodePort) || self.type != 'ClusterIP'",message="spec.service.nodePort goes with type NodePort or LoadBalancer: set the type, or leave the port out"
// +kubebuilder:validation:XValidation:rule="!has(self.externalTrafficPolicy) || self.type != 'ClusterIP'",message="spec.service.externalTrafficPolicy goes with type NodePort or LoadBalancer: set the type, or leave the policy out"
// +kubebuilder:validation:XValidation:rule="self.type != 'LoadBalancer' || !has(oldSelf.loadBalancerClass) || oldSelf.type != 'LoadBalancer' || has(self.loadBalancerClass) && self.loadBalancerClass == oldSelf.loadBalancerClass",message="Kubernetes keeps the loadBalancerClass of a Service for as long as it is of type LoadBalancer: set type ClusterIP first, and then LoadBalancer with the new class"
type ServiceSpec struct {
	// Type of the Service. NodePort and LoadBalancer make the pool reachable from outside the cluster: use a password, and TLS.
	// +optional
	// +kubebuilder:default=ClusterIP
	// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
	Type corev1.ServiceType `json:"type,omitempty"`

	// Labels of the Service, beside the operator's own.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, !format.qualifiedName().validate(k).hasValue())",message="a label's name is [prefix/]name with at most 63 letters, digits, '-', '_' and '.' in name"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('farpool.dev/') && !(k in ['app.kubernetes.io/name', 'app.kubernetes.io/instance', 'app.kubernetes.io/managed-by']))",message="the operator sets the labels farpool.dev/*, app.kubernetes.io/name, app.kubernetes.io/instance and app.kubernetes.io/managed-by itself: choose other names"
	Labels map[string]LabelValue `json:"labels,omitempty"`

	// Annotations of the Service, by which controllers of load balancers and of DNS are told what to do.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, !format.qualifiedName().validate(k).hasValue())",message="an annotation's name is [prefix/]name with at most 63 letters, digits, '-', '_' and '.' in name"
	Annotations map[string]string `json:"annotations,omitempty"`

	// NodePort on which Kubernetes nodes take connections; Kubernetes chooses one if it is left out.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	NodePort *int32 `json:"nodePort,omitempty"`

	// LoadBalancerClass names the controller that makes the load balancer.
	// +optional
	// +kubebuilder:validation:MaxLength=316
	// +kubebuilder:validation:XValidation:rule="!format.qualifiedName().validate(self).hasValue()",message="loadBalancerClass is [prefix/]name, such as example.com/internal"
	LoadBalancerClass string `json:"loadBalancerClass,omitempty"`

	// LoadBalancerSourceRanges whose addresses alone may connect through the load balancer, such as 10.0.0.0/8.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	LoadBalancerSourceRanges []SourceRange `json:"loadBalancerSourceRanges,omitempty"`

	// ExternalTrafficPolicy: with Local, connections from outside go to compute shards on the Kubernetes node where they arrive, and keep their address.
	// +optional
	// +kubebuilder:validation:Enum=Cluster;Local
	ExternalTrafficPolicy corev1.ServiceExternalTrafficPolicy `json:"externalTrafficPolicy,omitempty"`

	// TrafficDistribution: PreferClose sends connections to compute shards near the client, if there are any.
	// +optional
	// +kubebuilder:validation:Enum=PreferClose
	TrafficDistribution string `json:"trafficDistribution,omitempty"`

	// IPFamilyPolicy of the Service on clusters with IPv4 and IPv6; SingleStack if it is left out.
	// +optional
	// +kubebuilder:validation:Enum=SingleStack;PreferDualStack;RequireDualStack
	IPFamilyPolicy corev1.IPFamilyPolicy `json:"ipFamilyPolicy,omitempty"`
}

// SourceRange is a range of IP addresses.
// +kubebuilder:validation:MaxLength=43
// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="a source range is an address and a length, such as 10.0.0.0/8 or fd00::/8"
type SourceRange string
