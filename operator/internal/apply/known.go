// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"crypto/sha256"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Known remembers which versions of a pool's objects were found to be as wanted. An object's version changes with every write to it. A known version needs no
// second comparison with the same wanted object; an unknown version is compared in full.
// Known also remembers which objects were made a moment ago and are not in the cache yet.
type Known struct {
	mutex sync.Mutex
	// right is the last look at which each version was as wanted.
	right map[digest]uint8
	// made has how many more looks are to believe that an object is there, by its kind and name.
	made map[made]int
	look uint8
}

// made is an object that was made.
type made struct{ kind, namespace, name string }

// believed is how many looks believe that an object is there that was made and that the cache does not show: the next ones ask the API server.
const believed = 3

// digest is of an object's version and of what is wanted of it; zero: of nothing that can be known.
type digest [16]byte

// digestOf returns the digest of an object as the cache has it, and of what is wanted of it or of a subresource of it. An object without a version is none that
// the API server has written.
func digestOf(cached client.Object, subresource string, desired []byte) (is digest) {
	if cached.GetUID() == "" || cached.GetResourceVersion() == "" {
		return digest{}
	}
	hash := sha256.New()
	for _, text := range []string{string(cached.GetUID()), cached.GetResourceVersion(), subresource} {
		hash.Write([]byte(text))
		hash.Write([]byte{0})
	}
	hash.Write(desired)
	copy(is[:], hash.Sum(nil))
	return is
}

// Begin starts a look at the pool, and forgets what the look before did not find any more.
func (k *Known) Begin() {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	for is, look := range k.right {
		if look != k.look {
			delete(k.right, is)
		}
	}
	k.look++
	for object := range k.made {
		if k.made[object]--; k.made[object] < 0 {
			delete(k.made, object)
		}
	}
}

// make records that an object was made.
func (k *Known) make(object made) {
	if k == nil {
		return
	}
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if k.made == nil {
		k.made = map[made]int{}
	}
	k.made[object] = believed
}

// isUnseen says whether an object that the cache does not show was made a moment ago.
func (k *Known) isUnseen(object made) bool {
	if k == nil {
		return false
	}
	k.mutex.Lock()
	defer k.mutex.Unlock()
	_, unseen := k.made[object]
	return unseen
}

// see records that the cache shows an object. Once it has, one that it does not show is gone.
func (k *Known) see(object made) {
	if k == nil {
		return
	}
	k.mutex.Lock()
	defer k.mutex.Unlock()
	delete(k.made, object)
}

// isRight says whether a version is known to be as wanted.
func (k *Known) isRight(is digest) bool {
	if k == nil {
		return false
	}
	k.mutex.Lock()
	defer k.mutex.Unlock()
	_, right := k.right[is]
	if right {
		k.right[is] = k.look
	}
	return right
}

// found records that a version is as wanted.
func (k *Known) found(is digest) {
	if k == nil || is == (digest{}) {
		return
	}
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if k.right == nil {
		k.right = map[digest]uint8{}
	}
	k.right[is] = k.look
}
