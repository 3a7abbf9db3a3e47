// SPDX-License-Identifier: Apache-2.0

package render

import (
	"net"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
)

// BindingType is the type of Secrets with what an application needs to reach a Redis server, as the Service Binding Specification for Kubernetes has it.
const BindingType corev1.SecretType = "servicebinding.io/redis"

// Binding is the Secret with what an application needs to reach the pool, under the keys that the Service Binding Specification names. A nil password is left out,
// as are certificates of authorities if there are none: applications then trust the authority of the pool's certificate anyway.
func Binding(pool Pool, password, certificates []byte, resourceVersion string) *corev1ac.SecretApplyConfiguration {
	host, port := pool.ServiceName()+"."+pool.Namespace+".svc", strconv.Itoa(PortRESP)
	uri := url.URL{Scheme: "redis", Host: net.JoinHostPort(host, port)}
	data := map[string][]byte{"type": []byte("redis"), "provider": []byte("farpool"), "host": []byte(host), "port": []byte(port)}
	if password != nil {
		data[KeyPassword] = password
		uri.User = url.UserPassword("", string(password))
	}
	if pool.TLSSecret() != "" {
		uri.Scheme = "rediss"
	}
	if certificates != nil {
		data["certificates"] = certificates
	}
	data["uri"] = []byte(uri.String())
	return Secret(pool, pool.BindingSecretName(), data, resourceVersion).WithType(BindingType)
}
