// SPDX-License-Identifier: Apache-2.0

// Package plan decides. It takes a snapshot and the time, and says which objects there should be, what memory nodes receive and what the statuses are. It has no
// client, no clock and no log.
package plan

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	farpoolv1alpha1 "farpool.dev/farpool/api/gen/farpool/v1alpha1"
	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/agent"
	"farpool.dev/farpool/operator/internal/observe"
	"farpool.dev/farpool/operator/internal/pki"
	"farpool.dev/farpool/operator/internal/protocol"
	"farpool.dev/farpool/operator/internal/render"
	"farpool.dev/farpool/operator/internal/shardmap"
)

// Settings are the operator's.
type Settings struct {
	// Image is the data plane's, for pools whose spec names no version.
	Image string
	// Namespace is the one that the operator runs in; empty outside a cluster.
	Namespace string
	// SecretNamespace is where the operator keeps authorities and hash secrets of pools; empty: each in its pool's namespace.
	SecretNamespace string
	// SharedMemoryPaths are directories of Kubernetes nodes. Pools may have directories for shared memory below them.
	SharedMemoryPaths []string
	// ClusterDomain is the end of the names of Services; empty: cluster.local.
	ClusterDomain string
	// PlatformUsers says that the platform assigns users and groups to pods.
	PlatformUsers bool
	// PodResize says whether the API server resizes pods that run.
	PodResize bool
	// MemoryPriorityClass is the priority class of pods of memory nodes that are made from now on; empty: the cluster's default.
	MemoryPriorityClass string
	// AgentAddress is where the agent of a pod listens.
	AgentAddress func(*corev1.Pod) string
}

// Input is what a decision is made from.
type Input struct {
	*observe.Snapshot
	Settings Settings
	Now      time.Time
	// Random makes secrets.
	Random io.Reader
}

// Plan is a decision.
type Plan struct {
	// Apply lists objects in the order in which they are applied. Objects that are as they should be are left alone.
	Apply  []render.Object
	Delete []client.Object
	// Amend lists changes to pods that run.
	Amend []Amendment
	// Relabel are objects that have lost labels by which the pool, its Services or people find them.
	Relabel []Relabelling
	// Adopt are pods of memory nodes that have other owners than they should.
	Adopt []Adoption
	// Needs are the objects that have to be applied before another. ConnectNeeds have to be applied before streams are opened, and PublishNeeds before a memory
	// node receives a map.
	Needs                      map[render.Object][]render.Object
	ConnectNeeds, PublishNeeds []render.Object
	// DeleteNeeds are the objects that have to be applied before another is deleted, because they take its place.
	DeleteNeeds map[client.Object][]render.Object

	// Targets are the processes to keep streams with, if there is an authority for certificates to show.
	Targets   []agent.Target
	Authority *pki.Authority
	// Publish lists the maps to be sent after everything is applied: a map is an object before a memory node receives it.
	Publish []Publication
	// Ask lists calls to agents on behalf of RepairLeases, which are made once the statuses are written.
	Ask []agent.Call

	Status Status
	// Events are those of objects that were applied.
	Events []Event

	// RequeueAfter is how long until the pool is looked at again even if nothing happens; zero: until something happens.
	RequeueAfter time.Duration
}

// Relabelling is an object and the labels that it is to have.
type Relabelling struct {
	Object client.Object
	Labels map[string]string
}

// Adoption is a pod and the owners that it is to have.
type Adoption struct {
	Pod    *corev1.Pod
	Owners []metav1.OwnerReference
}

// Publication sends a map to a memory node.
type Publication struct {
	Node       string
	Pod        types.UID
	Map        *v1alpha1.ShardMapSpec
	PoolSecret []byte
	// MapKey signs the map; nil: it is not signed.
	MapKey []byte
}

// Status holds the statuses of all objects that have one.
type Status struct {
	// Unsettled says that an agent has not been heard for the first time yet, so that the decision knows less than the statuses say.
	Unsettled bool

	Pool    v1alpha1.KVPoolStatus
	Nodes   map[string]v1alpha1.MemoryNodeStatus
	Maps    map[string]v1alpha1.ShardMapStatus
	Leases  map[string]v1alpha1.RepairLeaseStatus
	Resizes map[string]v1alpha1.ResizeOperationStatus
	// MemoryPools and ComputePools by the names of their MemoryNodePools and ComputeShardPools.
	MemoryPools  map[string]v1alpha1.ScaleStatus
	ComputePools map[string]v1alpha1.ComputeShardPoolStatus

	// OpenLeases is how many RepairLeases are not complete; Backlog is how many dead processes wait for one.
	OpenLeases, Backlog int
	// CertificatesOverdue is when two thirds of the life of the first of the pool's certificates have passed; zero: it has none.
	CertificatesOverdue time.Time
	// PartsLeft is how many parts have yet to move, and KeysLeft about how many keys; nil: not every memory node has reported its number of keys.
	PartsLeft int32
	KeysLeft  *int64

	// Events announce changes of these statuses.
	Events []Event
}

// Event is for people to see.
type Event struct {
	Regarding client.Object
	Type      string
	Reason    string
	Action    string
	Note      string

	// Of is the ResizeOperation whose status announces the event, Line is its subject, and Step how far that has come. While the cache shows the earlier status,
	// the event is decided again. It is sent once, until its line comes to another step.
	Of         types.UID
	Line, Step string

	// By is the object whose status announces the event; empty: the object that the event regards.
	By types.UID
	// With is an object that has to be applied before the event is sent; nil: none.
	With render.Object
}

// decision is a plan that is being made.
type decision struct {
	Input
	Plan

	pool     render.Pool
	template render.Template
	version  int32
	paused   bool

	nodes []*node
	// poolSecret is nil if it is lost. mapKey is nil in pools whose maps are not signed.
	poolSecret, mapKey []byte
	// hashSecret and authority are Secrets that have to be written down before anything is done with what they hold.
	hashSecret, authority render.Object
	// deployments are the Deployments that are applied, by name.
	deployments map[string]render.Object

	epochs  epochs
	repairs repairs
	written written
	moves   moves
	upgrade upgrade

	// memoryScales and computeScales are in the order of the spec's entries; growth has the condition of each memory pool that may grow by itself.
	memoryScales, computeScales []scale
	growth                      map[string]*metav1.Condition
	// retired are the memory pools that are drained because the spec does not have them any more, or has them in another shape.
	retired map[string]bool
	// limits says why a memory pool gets another number of memory nodes than it asks for.
	limits map[string]limit

	specInvalid  *finding
	certificates finding
	degraded     []finding
}

// finding is a reason and words for people.
type finding struct {
	reason  string
	message string
}

// node is what is known of a memory node that the spec asks for, or of one that has to go.
type node struct {
	name string
	// wanted says that the spec asks for it. Other memory nodes are drained, and go when they hold nothing any more.
	wanted  bool
	pool    *v1alpha1.MemoryPool
	ordinal int32
	object  *v1alpha1.MemoryNode
	pod     *corev1.Pod
	agent   agent.Observation
	// facts are current and of the right shape, or nil.
	facts *farpoolv1alpha1.Facts
	// evacuated says that its Kubernetes node is about to be emptied: its keys leave, and it is made again elsewhere.
	evacuated bool
	// mismatch says why its facts are of no use.
	mismatch string
	// wantedPod is the result of rendered.
	wantedPod *corev1ac.PodApplyConfiguration
}

// Decide decides what to do about one pool.
func Decide(input Input) (*Plan, error) {
	d := &decision{Input: input}
	d.findMap()
	d.takeOverSpec()
	spec := d.Pool.Spec
	d.paused = spec.Management == v1alpha1.ManagementPaused
	image := d.chooseImage()
	d.pool = render.Pool{
		Name: d.Pool.Name, Namespace: d.Pool.Namespace, UID: d.Pool.UID, Spec: spec,
		Image: image, OperatorNamespace: d.Settings.Namespace,
		SecretNamespace: cmp.Or(d.Settings.SecretNamespace, d.Pool.Namespace),
		ClusterDomain:   d.Settings.ClusterDomain, PlatformUsers: d.Settings.PlatformUsers,
		MemoryPriorityClass: d.Settings.MemoryPriorityClass,
	}
	template, err := render.TemplateOf(d.version)
	_, unknown := protocol.Of(&spec.Index)
	switch {
	case err != nil:
		d.specInvalid = &finding{v1alpha1.ReasonUnsupported, err.Error()}
	case spec.Network.Transport != v1alpha1.TransportTCP && (spec.Network.Transport != v1alpha1.TransportRoCEv2 || spec.Network.Attachment == nil):
		d.specInvalid = &finding{v1alpha1.ReasonUnsupported, fmt.Sprintf("spec.network.transport %s has no wire in this operator's version: create the pool with TCP, or with RoCEv2 and an attachment", spec.Network.Transport)}
	case unknown != nil:
		d.specInvalid = &finding{v1alpha1.ReasonUnsupported, unknown.Error()}
	case !d.maySharePath():
		d.specInvalid = &finding{v1alpha1.ReasonUnsupported, fmt.Sprintf("spec.network.sharedMemory.hostPath %s lies in none of the directories of Kubernetes nodes that this operator gives to pods (%s): create the pool with one of these, "+
			"or start the operator with --shared-memory-paths that include it", spec.Network.SharedMemory.HostPath, cmp.Or(strings.Join(d.Settings.SharedMemoryPaths, ", "), "there are none"))}
	}
	d.template = template

	d.observeNodes()
	d.evacuate()
	d.findResize()
	d.hold()
	d.guard()
	act := !d.paused && d.specInvalid == nil
	if err := d.secrets(act); err != nil {
		return nil, err
	}
	d.targets()
	d.decideMap(act)
	d.decideRepairs(act)
	d.decideResize(act)
	d.decideGrowth(act)
	d.decideUpgrade(act)
	if act {
		d.objects()
		d.bindings()
		d.amend()
		d.removals()
	}
	d.status()
	return &d.Plan, nil
}

// DefaultSharedMemoryPaths are directories that hold nothing else.
var DefaultSharedMemoryPaths = []string{"/run/farpool", "/var/run/farpool", "/dev/shm/farpool"}

// maySharePath says whether the pool may use its directory on Kubernetes nodes. The operator makes the pods, so that without a list, a user who may write KVPools
// could mount any directory. A pool that has memory nodes already keeps its directory.
func (d *decision) maySharePath() bool {
	shared := d.Pool.Spec.Network.SharedMemory
	if shared == nil || len(d.Snapshot.Nodes) > 0 {
		return true
	}
	return slices.ContainsFunc(d.Settings.SharedMemoryPaths, func(allowed string) bool {
		return shared.HostPath == allowed || strings.HasPrefix(shared.HostPath, strings.TrimSuffix(allowed, "/")+"/")
	})
}

// imageOf puts version in the place of image's tag and digest.
func imageOf(image, version string) string {
	if version == "" {
		return image
	}
	repository, _, _ := strings.Cut(image, "@")
	if colon := strings.LastIndexByte(repository, ':'); colon > strings.LastIndexByte(repository, '/') {
		repository = repository[:colon]
	}
	return repository + ":" + version
}

// observeNodes collects the memory nodes that the spec asks for, and the ones that have to go: these still have an object, a pod, or an entry in the pool's map.
func (d *decision) observeNodes() {
	for p := range d.Pool.Spec.Memory.Pools {
		memoryPool := &d.Pool.Spec.Memory.Pools[p]
		for ordinal := range memoryPool.Replicas {
			d.observeNode(&node{name: v1alpha1.MemoryNodeName(d.Pool.Name, memoryPool.Name, ordinal), wanted: true, pool: memoryPool, ordinal: ordinal})
		}
	}
	for _, name := range d.knownNodes() {
		if d.nodeNamed(name) == nil {
			if n := d.beyond(name); n != nil {
				d.observeNode(n)
			}
		}
	}
}

// beyond is the memory node of a name that the spec does not ask for; nil: no memory pool has such names.
func (d *decision) beyond(name string) *node {
	entry, ordinal, named := d.nameOf(name)
	at := slices.IndexFunc(d.Pool.Spec.Memory.Pools, func(memoryPool v1alpha1.MemoryPool) bool { return memoryPool.Name == entry })
	if !named || at < 0 {
		return nil
	}
	return &node{name: name, pool: &d.Pool.Spec.Memory.Pools[at], ordinal: ordinal}
}

func (d *decision) observeNode(n *node) {
	n.object = d.Snapshot.Nodes[n.name]
	n.pod = d.NodePods[n.name]
	if n.pod != nil {
		n.agent = d.Agents[n.pod.UID]
	}
	if n.agent.State == agent.Connected {
		n.mismatch = d.mismatch(n)
		if n.mismatch == "" {
			n.facts = n.agent.Facts
		}
	}
	d.nodes = append(d.nodes, n)
}

// protocol is the pool's index protocol. A protocol that this operator does not have fits no table.
func (d *decision) protocol() protocol.Protocol {
	p, _ := protocol.Of(&d.Pool.Spec.Index)
	return p
}

// mismatch says why a memory node that answers cannot be used; empty: it can.
func (d *decision) mismatch(n *node) string {
	facts := n.agent.Facts.GetMemoryNode()
	p := d.protocol()
	if !p.Has(facts) {
		return fmt.Sprintf("memory node %s has tables of another protocol than spec.index wants, which is %s: delete its pod, and it is made again", n.name, p.Name())
	}
	if difference := p.Mismatch(&d.Pool.Spec.Index, facts); difference != "" {
		return fmt.Sprintf("memory node %s %s: delete its pod, and it is made again", n.name, difference)
	}
	// A memory node keeps each map before it follows it, so an epoch far beyond every signed map is a lie, or damage.
	if known := d.known(); render.OwnIdentities(d.version) && facts.GetRecordedEpoch() > known+farthest {
		return fmt.Sprintf("memory node %s claims to have followed epoch %d, and the newest map that the operator has signed is of epoch %d: it is not believed; delete its pod, and it is made again", n.name, facts.GetRecordedEpoch(), known)
	}
	if facts.GetEndpoint() == "" {
		return fmt.Sprintf("memory node %s advertises no endpoint: look into its pod's log", n.name)
	}
	if length := len(facts.GetEndpoint()); length > shardmap.LongestEndpoint {
		return fmt.Sprintf("memory node %s advertises an endpoint of %d bytes, and a map holds %d: look into its pod's log", n.name, length, shardmap.LongestEndpoint)
	}
	return ""
}

// farthest is how many epochs beyond the newest known map a memory node may claim to have followed. It may be ahead after a restored backup.
const farthest = 1 << 20

// known is the newest epoch that has, or had, a ShardMap.
func (d *decision) known() uint64 {
	known := int64(0)
	if d.epochs.current != nil {
		known = d.epochs.current.Epoch
	}
	if reference := d.Pool.Status.ShardMap; reference != nil {
		known = max(known, reference.Epoch)
	}
	return uint64(known)
}

// secrets decides about certificates, the password and the pool's hash secret.
func (d *decision) secrets(act bool) error {
	d.readPoolSecret()
	if err := d.certificatesOf(act); err != nil {
		return err
	}
	if !act {
		return nil
	}
	if d.poolSecret == nil || d.mapKeyLost() {
		if d.everHadMap() {
			// Tables are found by a hash of this secret. With another secret, every key would be a miss.
			d.degraded = append(d.degraded, finding{v1alpha1.ReasonSecretMissing, fmt.Sprintf(
				"Secret %s/%s is gone or incomplete, and with it the hash secret of the pool's directory or the key that its maps are signed with: no new epoch can be published; restore the Secret from a backup, or create the pool again",
				d.pool.SecretNamespace, d.pool.PoolSecretName())})
			d.poolSecret, d.mapKey = nil, nil
		} else {
			if d.poolSecret == nil {
				d.poolSecret = make([]byte, 16)
				if _, err := io.ReadFull(d.Random, d.poolSecret); err != nil {
					return fmt.Errorf("draw a pool secret: %w", err)
				}
			}
			if d.mapKeyLost() {
				d.mapKey = make([]byte, shardmap.KeyBytes)
				if _, err := io.ReadFull(d.Random, d.mapKey); err != nil {
					return fmt.Errorf("draw a map key: %w", err)
				}
			}
		}
	}
	d.tellMapKey()
	if d.poolSecret != nil {
		d.hashSecret = render.KeptSecret(d.pool, d.pool.PoolSecretName(), d.poolSecretData(), d.keptVersion(d.pool.PoolSecretName()))
		d.Apply = append(d.Apply, d.hashSecret)
		d.PublishNeeds = append(d.PublishNeeds, d.hashSecret)
	}
	if d.Pool.Spec.Security.Password == v1alpha1.PasswordGenerated {
		name := d.pool.PasswordSecretName()
		password := d.secret(name)[render.KeyPassword]
		if len(password) == 0 {
			random := make([]byte, 24)
			if _, err := io.ReadFull(d.Random, random); err != nil {
				return fmt.Errorf("draw a password: %w", err)
			}
			password = []byte(base64.RawURLEncoding.EncodeToString(random))
		}
		d.Apply = append(d.Apply, render.Secret(d.pool, name, map[string][]byte{render.KeyPassword: password}, d.resourceVersion(name)))
	}
	return nil
}

// readPoolSecret finds the hash secret and the key that maps are signed with.
func (d *decision) readPoolSecret() {
	data := d.keptSecret(d.pool.PoolSecretName(), d.pool.FormerPoolSecretName())
	d.poolSecret = data[render.KeyPoolSecret]
	if !render.OwnIdentities(d.version) {
		return
	}
	if d.mapKey = data[render.KeyMapKey]; len(d.mapKey) != shardmap.KeyBytes {
		d.mapKey = nil
	}
	d.tellMapKey()
}

func (d *decision) tellMapKey() {
	if d.mapKey != nil {
		d.pool.MapKey = base64.StdEncoding.EncodeToString(shardmap.PublicKey(d.mapKey))
	}
}

// mapKeyLost says whether the pool's maps have to be signed and the key is lost. Then no pod is made, because it would accept any map.
func (d *decision) mapKeyLost() bool { return render.OwnIdentities(d.version) && d.mapKey == nil }

func (d *decision) poolSecretData() map[string][]byte {
	data := map[string][]byte{render.KeyPoolSecret: d.poolSecret}
	if d.mapKey != nil {
		data[render.KeyMapKey] = d.mapKey
	}
	return data
}

func (d *decision) secret(name string) map[string][]byte {
	if secret := d.Secrets[name]; secret != nil {
		return secret.Data
	}
	return nil
}

func (d *decision) resourceVersion(name string) string {
	if secret := d.Secrets[name]; secret != nil {
		return secret.ResourceVersion
	}
	return ""
}

// keptSecret returns what a Secret of the operator holds. Pools of older templates had it under another name in their own namespace, and the operator takes it
// over from there. It takes over nothing of newer pools: a user who may write Secrets there could otherwise choose the pool's authority.
func (d *decision) keptSecret(name, former string) map[string][]byte {
	if secret := d.Kept[name]; secret != nil {
		return secret.Data
	}
	if d.version < render.FirstKept {
		return d.secret(former)
	}
	return nil
}

func (d *decision) keptVersion(name string) string {
	if secret := d.Kept[name]; secret != nil {
		return secret.ResourceVersion
	}
	return ""
}

// formerRemovals deletes Secrets of the pool's namespace that the operator has taken over, once its own Secret is seen to hold their content.
func (d *decision) formerRemovals() {
	if d.version >= render.FirstKept {
		return
	}
	if former, kept := d.Secrets[d.pool.FormerPoolSecretName()], d.Kept[d.pool.PoolSecretName()]; former != nil && kept != nil &&
		bytes.Equal(former.Data[render.KeyPoolSecret], kept.Data[render.KeyPoolSecret]) {
		d.Delete = append(d.Delete, former)
	}
	// The authority may have been renewed since. The certificates of earlier ones stay in its bundle.
	if former, kept := d.Secrets[d.pool.FormerCASecretName()], d.Kept[d.pool.CASecretName()]; former != nil && kept != nil && d.Authority != nil &&
		bytes.Contains(kept.Data[pki.KeyCABundle], former.Data[pki.KeyCertificate]) {
		d.Delete = append(d.Delete, former)
	}
}

// certificatesOf renews certificates that are due. It does so even in a pool for which the operator may not act: a pool that is paused for long would otherwise
// stop. A damaged authority is a finding: everything else goes on with the certificates that pods have.
func (d *decision) certificatesOf(act bool) error {
	held := d.keptSecret(d.pool.CASecretName(), d.pool.FormerCASecretName())
	if !act && len(held) == 0 {
		d.certificates = finding{v1alpha1.ReasonPaused, "there are no certificates yet, and the operator may not make any now"}
		return nil
	}
	uid := string(d.Pool.UID)
	now := d.Now
	authority, _, err := pki.RenewAuthority(held, uid, now, d.Random)
	if err != nil {
		d.certificates = finding{v1alpha1.ReasonIssueFailed, fmt.Sprintf("Secret %s/%s: %v", d.pool.SecretNamespace, d.pool.CASecretName(), err)}
		return nil
	}
	d.overdue(held)
	d.Authority = authority
	d.due(authority.RenewAt())
	d.authority = render.KeptSecret(d.pool, d.pool.CASecretName(), authority.Data(), d.keptVersion(d.pool.CASecretName()))
	d.Apply = append(d.Apply, d.authority)
	d.ConnectNeeds = append(d.ConnectNeeds, d.authority)

	d.checkPeoplesTLS()
	d.checkIssuedTLS()
	for _, r := range d.wantedCertificates() {
		held := d.secret(r.secret)
		if !act && held == nil {
			continue
		}
		d.overdue(held)
		data, _, renewAt, err := authority.RenewCertificate(held, r.request, now)
		if err != nil {
			d.certificates = finding{v1alpha1.ReasonIssueFailed, fmt.Sprintf("Secret %s: %v", r.secret, err)}
		} else {
			d.due(renewAt)
			d.apply(render.Secret(d.pool, r.secret, data, d.resourceVersion(r.secret)), d.authority)
		}
	}
	return nil
}

// overdue remembers when the first of the pool's certificates should have been renewed long ago.
func (d *decision) overdue(held map[string][]byte) {
	if at := pki.Overdue(held); !at.IsZero() && (d.Status.CertificatesOverdue.IsZero() || at.Before(d.Status.CertificatesOverdue)) {
		d.Status.CertificatesOverdue = at
	}
}

// apply plans to apply an object, once the objects that it needs are applied.
func (d *decision) apply(object render.Object, needs ...render.Object) {
	d.Apply = append(d.Apply, object)
	if d.Needs == nil {
		d.Needs = map[render.Object][]render.Object{}
	}
	d.Needs[object] = needs
}

// wantedCertificate is a certificate that a Secret of the pool's namespace should hold.
type wantedCertificate struct {
	secret  string
	request pki.Request
}

// wantedCertificates are one for each memory node and each compute pool if pods have their own, and one for each role otherwise.
func (d *decision) wantedCertificates() []wantedCertificate {
	member := func(secret string, role pki.Role, name string) wantedCertificate {
		return wantedCertificate{secret, pki.Request{Identity: pki.Identity{PoolUID: string(d.Pool.UID), Role: role, Name: name}, Client: true, Server: true}}
	}
	var wanted []wantedCertificate
	if render.OwnIdentities(d.version) {
		for _, n := range d.nodes {
			if n.wanted || n.object != nil || n.pod != nil || d.inMap(n.name) {
				wanted = append(wanted, member(render.NodeTLSSecretOf(n.name), pki.RoleNode, n.name))
			}
		}
		for _, computePool := range d.pool.ComputePools() {
			name := d.pool.ComputeName(computePool.Name)
			wanted = append(wanted, member(render.ClientTLSSecretOf(name), pki.RoleClient, name))
		}
	} else {
		wanted = append(wanted, member(d.pool.NodeTLSSecretName(), pki.RoleNode, d.pool.Name), member(d.pool.ClientTLSSecretName(), pki.RoleClient, d.pool.Name))
	}
	if d.Pool.Spec.Security.TLS().Mode == v1alpha1.TLSGenerated {
		wanted = append(wanted, wantedCertificate{d.pool.RESPTLSSecretName(), pki.Request{DNSNames: d.pool.RESPHosts(), Server: true}})
	}
	return wanted
}

// certificateRemovals are the Secrets of memory nodes and compute pools that are gone.
func (d *decision) certificateRemovals() {
	if d.Authority == nil {
		return
	}
	wanted := map[string]bool{}
	for _, r := range d.wantedCertificates() {
		wanted[r.secret] = true
	}
	var names []string
	for name, secret := range d.Secrets {
		ours := name == d.pool.RESPTLSSecretName() ||
			(strings.HasSuffix(name, render.NodeTLSSecretOf("")) || strings.HasSuffix(name, render.ClientTLSSecretOf(""))) && metav1.IsControlledBy(secret, d.Pool)
		if ours && !wanted[name] && secret.DeletionTimestamp.IsZero() && !d.mounted(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		d.Delete = append(d.Delete, d.Secrets[name])
	}
}

// due makes the controller look at the pool again at a time, even if nothing happens until then.
func (d *decision) due(at time.Time) {
	wait := max(at.Sub(d.Now), time.Second)
	d.RequeueAfter = min(cmp.Or(d.RequeueAfter, wait), wait)
}

// objects plans the objects that there should be.
func (d *decision) objects() {
	if !d.mapKeyLost() {
		d.apply(render.Config(d.pool, d.template), d.mapKeyNeeds()...)
	}
	for _, service := range render.Services(d.pool) {
		d.Apply = append(d.Apply, service)
	}
	for _, policy := range render.NetworkPolicies(d.pool) {
		d.Apply = append(d.Apply, policy)
	}
	for _, budget := range render.DisruptionBudgets(d.pool) {
		d.Apply = append(d.Apply, budget)
	}
	d.certificate()
	d.scaleObjects()
	for _, n := range d.nodes {
		if !d.goes(n) {
			d.memoryNode(n)
		}
	}
	for _, computePool := range d.pool.ComputePools() {
		switch deployment, err := d.template.ComputeDeployment(d.pool, computePool); {
		case err != nil:
			d.degraded = append(d.degraded, finding{v1alpha1.ReasonUnsupported, fmt.Sprintf("compute pool %s: %v", computePool.Name, err)})
		case !d.mapKeyLost():
			d.apply(deployment, d.mapKeyNeeds()...)
			if d.deployments == nil {
				d.deployments = map[string]render.Object{}
			}
			d.deployments[*deployment.Name] = deployment
		}
	}
	if d.epochs.next != nil {
		next := render.ShardMap(d.pool, d.epochs.next)
		d.apply(next, d.hashSecret)
		d.PublishNeeds = append(d.PublishNeeds, next)
		for i := range d.Events {
			if d.Events[i].With == nil {
				d.Events[i].With = next
			}
		}
	}
	d.Apply = append(d.Apply, d.repairs.made...)
	d.Apply = append(d.Apply, d.moves.made...)
	d.relabelOthers()
}

// mapKeyNeeds is what has to be written down before a pod receives the public map key: another operator may have drawn another key.
func (d *decision) mapKeyNeeds() []render.Object {
	if d.mapKey == nil {
		return nil
	}
	return []render.Object{d.hashSecret}
}

// goes says whether nothing of a memory node is made or changed any more. One that has to go keeps its objects as long as the map has it: keys may lie there. A
// pod that has outlived its MemoryNode gets another MemoryNode, with which it goes like any other.
func (d *decision) goes(n *node) bool {
	left := n.object == nil && n.pod != nil
	return !d.inMap(n.name) && (!n.wanted && !left || d.drained(n))
}

// memoryNode makes the memory node's object once, and its pod whenever there is none. It never replaces a pod that has found a place.
func (d *decision) memoryNode(n *node) {
	pool := d.pool
	pool.Image = d.upgrade.image
	object := render.MemoryNode(pool, *n.pool, n.ordinal, d.version)
	if n.object == nil {
		d.Apply = append(d.Apply, object)
		return
	}
	if d.upgrade.next == n && n.object.DeletionTimestamp.IsZero() {
		object.Spec.WithImage(d.pool.Image).WithLend(n.object.Spec.Lend).WithTemplateVersion(n.object.Spec.TemplateVersion)
		d.Apply = append(d.Apply, object)
		if n.pod == nil {
			return // it is made with that image
		}
	}
	d.relabel(n.object, object.Labels)
	if !n.object.DeletionTimestamp.IsZero() {
		return
	}
	pod, err := d.rendered(n)
	if err != nil {
		d.degraded = append(d.degraded, finding{v1alpha1.ReasonUnsupported, fmt.Sprintf("memory node %s: %v", n.name, err)})
		return
	}
	d.relabel(n.pod, pod.Labels)
	d.adopt(n)
	switch {
	case d.mapKeyLost():
	case n.pod == nil:
		d.apply(pod, d.mapKeyNeeds()...)
	case !n.pod.DeletionTimestamp.IsZero():
	case n.pod.Status.Phase == corev1.PodFailed || n.pod.Status.Phase == corev1.PodSucceeded:
		// An evicted pod never comes back by itself.
		d.Delete = append(d.Delete, n.pod)
	case !observe.Placed(n.pod) && n.pod.Annotations[v1alpha1.AnnotationPodHash] != pod.Annotations[v1alpha1.AnnotationPodHash]:
		// The pod holds no data yet, and the spec has changed since it began to look for a place.
		d.Delete = append(d.Delete, n.pod)
	}
}

const mapsKept = 3

// removals deletes what the spec no longer asks for, and old maps.
func (d *decision) removals() {
	for _, n := range d.nodes {
		if !d.removable(n) {
			continue
		}
		// The pod goes first: a later MemoryNode of the same name must not meet it.
		switch {
		case n.pod != nil && n.pod.DeletionTimestamp.IsZero():
			d.Delete = append(d.Delete, n.pod)
		case n.pod == nil && n.object.DeletionTimestamp.IsZero():
			d.Delete = append(d.Delete, n.object)
		}
	}
	d.deploymentRemovals()
	d.scaleRemovals()
	d.formerRemovals()
	if secret := d.Secrets[d.pool.PasswordSecretName()]; secret != nil && d.Pool.Spec.Security.Password != v1alpha1.PasswordGenerated && !d.mounted(secret.Name) {
		d.Delete = append(d.Delete, secret)
	}
	d.certificateRemovals()
	d.certificateRemoval()
	budgets, policies := map[string]bool{}, map[string]bool{}
	for _, budget := range render.DisruptionBudgets(d.pool) {
		budgets[*budget.Name] = true
	}
	for _, policy := range render.NetworkPolicies(d.pool) {
		policies[*policy.Name] = true
	}
	for name, budget := range d.Budgets {
		if !budgets[name] {
			d.Delete = append(d.Delete, budget)
		}
	}
	for name, policy := range d.Policies {
		if !policies[name] {
			d.Delete = append(d.Delete, policy)
		}
	}
	for i := 0; i < len(d.ShardMaps)-mapsKept; i++ {
		d.Delete = append(d.Delete, d.ShardMaps[i])
	}
}

// deploymentRemovals deletes Deployments of compute pools that the spec does not have any more. Deployments that take their place are made first:
// clients of a pool whose new Deployment is refused keep the compute shards that they have.
func (d *decision) deploymentRemovals() {
	wanted := map[string]bool{}
	var takePlace []render.Object
	for _, computePool := range d.pool.ComputePools() {
		name := d.pool.ComputeName(computePool.Name)
		wanted[name] = true
		if there := d.Deployments[name]; there != nil && there.DeletionTimestamp.IsZero() {
			continue
		}
		made := d.deployments[name]
		if made == nil {
			return // it cannot be made for now
		}
		takePlace = append(takePlace, made)
	}
	d.DeleteNeeds = map[client.Object][]render.Object{}
	for name, deployment := range d.Deployments {
		if !wanted[name] && deployment.DeletionTimestamp.IsZero() {
			d.Delete = append(d.Delete, deployment)
			d.DeleteNeeds[deployment] = takePlace
		}
	}
}

// mounted says whether pods of compute shards have a Secret, or may still be made with it: an older ReplicaSet makes pods again until a rollout is through.
func (d *decision) mounted(secret string) bool {
	has := func(spec *corev1.PodSpec) bool {
		return slices.ContainsFunc(spec.Volumes, func(volume corev1.Volume) bool { return volume.Secret != nil && volume.Secret.SecretName == secret })
	}
	for _, pod := range d.ComputePods {
		if has(&pod.Spec) && pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded {
			return true
		}
	}
	for _, deployment := range d.Deployments {
		if has(&deployment.Spec.Template.Spec) || deployment.Status.ObservedGeneration < deployment.Generation || deployment.Status.UpdatedReplicas < deployment.Status.Replicas {
			return true
		}
	}
	return false
}

// targets are the processes that have an address.
func (d *decision) targets() {
	if d.Authority == nil {
		return
	}
	d.Targets = make([]agent.Target, 0, len(d.nodes)+len(d.ComputePods))
	add := func(pod *corev1.Pod, role farpoolv1alpha1.Role, holder, mapKey string) {
		if pod == nil || pod.Status.PodIP == "" || pod.Status.Phase != corev1.PodRunning || !pod.DeletionTimestamp.IsZero() {
			return
		}
		d.Targets = append(d.Targets, agent.Target{Pod: pod.UID, Name: pod.Name, Address: d.Settings.AgentAddress(pod), Role: role, Holder: holder, MapKey: mapKey})
		if d.Agents[pod.UID].State == agent.Connecting {
			d.Status.Unsettled = true
		}
	}
	for _, n := range d.nodes {
		switch {
		case !render.OwnIdentities(d.version):
			add(n.pod, farpoolv1alpha1.Role_ROLE_MEMORY_NODE, "", "")
		case d.mapKey != nil:
			// Without the key, nothing that it says about maps can be checked.
			add(n.pod, farpoolv1alpha1.Role_ROLE_MEMORY_NODE, n.name, string(shardmap.PublicKey(d.mapKey)))
		}
	}
	for _, pod := range d.ComputePods {
		holder := ""
		if render.OwnIdentities(d.version) {
			holder = d.DeploymentOf[pod.UID]
		}
		add(pod, farpoolv1alpha1.Role_ROLE_COMPUTE_SHARD, holder, "")
	}
}
