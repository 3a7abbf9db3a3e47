// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"strings"
)

// Role is what the holder of a certificate may be in its pool.
type Role string

const (
	RoleOperator Role = "operator"
	// RoleClient is held by compute shards and the native library.
	RoleClient Role = "client"
	// RoleNode is held by memory nodes.
	RoleNode Role = "node"
)

const uriScheme = "farpool"

// Identity is what a certificate says in the one URI of its subject alternative names: farpool://<pool-uid>/<role>/<name>.
type Identity struct {
	PoolUID string
	Role    Role
	Name    string
}

func (id Identity) uri() *url.URL {
	return &url.URL{Scheme: uriScheme, Host: id.PoolUID, Path: "/" + string(id.Role) + "/" + id.Name}
}

func (id Identity) String() string { return id.uri().String() }

// IdentityOf reads the identity of a certificate.
func IdentityOf(certificate *x509.Certificate) (Identity, error) {
	var found []*url.URL
	for _, uri := range certificate.URIs {
		if uri.Scheme == uriScheme {
			found = append(found, uri)
		}
	}
	if len(found) != 1 {
		return Identity{}, fmt.Errorf("the certificate of %q has %d farpool URIs, not one: it is no certificate of a pool", certificate.Subject, len(found))
	}
	role, name, ok := strings.Cut(strings.TrimPrefix(found[0].Path, "/"), "/")
	if !ok || found[0].Host == "" || role == "" || name == "" || strings.Contains(name, "/") {
		return Identity{}, fmt.Errorf("the certificate's URI %q is not farpool://<pool-uid>/<role>/<name>", found[0])
	}
	return Identity{PoolUID: found[0].Host, Role: Role(role), Name: name}, nil
}
