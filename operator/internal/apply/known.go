// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"crypto/sha256"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Known remembers which versions of a pool's objects were found to be as wanted. An object's version changes with every write to it. A known version needs no
// second comparison with the same wanted object; an unknown version is compared in full.
// Known also remembers which objects were made a moment ago and are not in the cache yet.
type Known struct {
	mutex sync.Mutex
	// right is what each version was found to be, and the last look that asked.
	right map[version]rightness
	// made has how many more looks are to believe that an object is there, by its kind and name.
	made map[made]int
	// sent has the last large status of each object that was sent in the background.
	sent map[types.UID]*sent
	look uint8
}

// made is an object that was made.
type made struct{ kind, namespace, name string }

// believed is how many looks believe that an object is there that was made and that the cache does not show: the next ones ask the API server.
const believed = 3

// version is one of an object or of a subresource of it; empty: of an object that the API server has not written, so that nothing can be known of it.
type version struct {
	uid         types.UID
	resource    string // the API server's resourceVersion
	subresource string
}

// versionOf returns the version that a cache shows.
func versionOf(cached metav1.Object, subresource string) version {
	if cached.GetUID() == "" || cached.GetResourceVersion() == "" {
		return version{}
	}
	return version{cached.GetUID(), cached.GetResourceVersion(), subresource}
}

// digest is of what is wanted of an object.
type digest [16]byte

func digestOf(desired []byte) (is digest) {
	sum := sha256.Sum256(desired)
	copy(is[:], sum[:])
	return is
}

// rightness is what a version was compared with and found to be, and the last look that asked for it.
type rightness struct {
	wanted digest
	look   uint8
}

// Begin starts a look at the pool, and forgets what the look before did not find any more.
func (k *Known) Begin() {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	for is, found := range k.right {
		if found.look != k.look {
			delete(k.right, is)
		}
	}
	for object, last := range k.sent {
		if last.look != k.look && !last.busy {
			delete(k.sent, object)
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

// isRight says whether a version is known to be as wanted. known: it was found to be as something, be it this or not.
func (k *Known) isRight(is version, wanted digest) (right, known bool) {
	if k == nil {
		return false, false
	}
	k.mutex.Lock()
	defer k.mutex.Unlock()
	found, known := k.right[is]
	if known {
		found.look = k.look
		k.right[is] = found
	}
	return known && found.wanted == wanted, known
}

// found records that a version is as wanted.
func (k *Known) found(is version, wanted digest) {
	if k == nil || is == (version{}) {
		return
	}
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if k.right == nil {
		k.right = map[version]rightness{}
	}
	k.right[is] = rightness{wanted, k.look}
}
