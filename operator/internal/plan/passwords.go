// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/render"
)

// fingerprint is the number by which a compute shard names a password to the operator: the first 8 bytes, big-endian, of the SHA-256 of the pool's uid, a zero
// byte and the password.
func fingerprint(poolUID string, password []byte) uint64 {
	sum := sha256.Sum256(slices.Concat([]byte(poolUID), []byte{0}, password))
	return binary.BigEndian.Uint64(sum[:])
}

// passwordsOf calls visit for each compute shard that says which passwords it takes, the one of its file first.
func (d *decision) passwordsOf(visit func(pod *corev1.Pod, passwords []uint64)) {
	for _, pod := range d.ComputePods {
		if passwords := d.Agents[pod.UID].Facts.GetComputeShard().GetPasswords(); len(passwords) > 0 && pod.DeletionTimestamp.IsZero() {
			visit(pod, passwords)
		}
	}
}

// passwordChanging says how far a change of the password is; nil: every compute shard takes one password, and all the same.
func (d *decision) passwordChanging() *metav1.Condition {
	secret, _ := d.pool.Password()
	if secret == "" {
		return nil
	}
	wanted := d.currentPassword()
	var lacking, two []string
	d.passwordsOf(func(pod *corev1.Pod, passwords []uint64) {
		switch {
		case passwords[0] != wanted:
			lacking = append(lacking, pod.Name)
		case len(passwords) > 1:
			two = append(two, pod.Name)
		}
	})
	slices.Sort(lacking)
	slices.Sort(two)
	var message string
	switch {
	case len(lacking) > 0:
		message = fmt.Sprintf("compute shards do not all have the password that Secret %s has now (%s): until they have read it, new connections to them need the one before", secret, some(lacking))
	case len(two) > 0:
		message = fmt.Sprintf("every compute shard has the password that Secret %s has now, and some take a second one (%s): applications may change. The one before goes 10 minutes after the change; a key %s in the "+
			"Secret counts until somebody removes it: kubectl farpool rotate-password %s --drop-old", secret, some(two), "with the suffix "+render.AlsoSuffix, d.Pool.Name)
	default:
		return nil
	}
	c := condition(v1alpha1.ConditionUpToDate, metav1.ConditionFalse, v1alpha1.ReasonPasswordChanging, "%s", message)
	return &c
}

// password is what the Secret with the password has now, as compute shards read it: without line ends after it. The operator reads its own Secret, and one of people
// only if they have given it the pool's label. Nil: it is not known.
func (d *decision) password() []byte {
	name, key := d.pool.Password()
	secret := d.PeoplesPassword
	if d.Pool.Spec.Security.Password == v1alpha1.PasswordGenerated {
		secret = d.Secrets[name]
	}
	if name == "" || secret == nil {
		return nil
	}
	if password := bytes.TrimRight(secret.Data[key], "\r\n"); len(password) > 0 {
		return password
	}
	return nil
}

// currentPassword is the fingerprint of the password in the Secret. What a Secret that the operator does not read holds is known from compute shards: one that takes
// two passwords has read the Secret last.
func (d *decision) currentPassword() (number uint64) {
	if password := d.password(); password != nil {
		return fingerprint(string(d.Pool.UID), password)
	}
	most := 0
	d.passwordsOf(func(_ *corev1.Pod, passwords []uint64) {
		if len(passwords) > most {
			number, most = passwords[0], len(passwords)
		}
	})
	return number
}

// bindings makes the Secret with what applications need to reach the pool, and deletes it where there is nothing to reach, or people do not let the operator read the
// password or the certificate. It has a new password once every compute shard takes that.
func (d *decision) bindings() {
	name := d.pool.BindingSecretName()
	held := d.Secrets[name]
	password, asks := d.password(), d.Pool.Spec.Security.Password != v1alpha1.PasswordNone
	certificates, known := d.authorities()
	switch {
	case len(d.pool.ComputePools()) == 0, d.Pool.Spec.Security.Password == v1alpha1.PasswordSecret && password == nil, !known && d.Pool.Spec.Security.TLS().Mode == v1alpha1.TLSFromSecret:
		if held != nil && held.DeletionTimestamp.IsZero() {
			d.Delete = append(d.Delete, held)
		}
		return
	case asks && password == nil, !known:
		return // a Secret of the pool is not made yet, or has lost its label
	}
	if before := d.secret(name)[render.KeyPassword]; asks && len(before) > 0 && !bytes.Equal(before, password) && d.early(before, password) {
		password = before
	}
	d.Apply = append(d.Apply, render.Binding(d.pool, password, certificates, d.resourceVersion(name)))
}

// early says whether applications have to go on with the password before: a compute shard does not take the new one, or was not heard yet, and none refuses the one
// before.
func (d *decision) early(before, password []byte) bool {
	old, now := fingerprint(string(d.Pool.UID), before), fingerprint(string(d.Pool.UID), password)
	lacks, refuses := d.Status.Unsettled, false
	d.passwordsOf(func(_ *corev1.Pod, passwords []uint64) {
		lacks = lacks || !slices.Contains(passwords, now)
		refuses = refuses || !slices.Contains(passwords, old)
	})
	return lacks && !refuses
}
