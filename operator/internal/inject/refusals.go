// SPDX-License-Identifier: Apache-2.0

package inject

import "fmt"

// A Reason names why a pod gets no sidecar. docs/sidecars.md says of each what to do.
type Reason string

const (
	NoPool              Reason = "NoPool"
	SeveralPools        Reason = "SeveralPools"
	NotListed           Reason = "NotListed"
	PoolDeleting        Reason = "PoolDeleting"
	PoolNotReady        Reason = "PoolNotReady"
	PoolTooOld          Reason = "PoolTooOld"
	BudgetSpent         Reason = "BudgetSpent"
	UnknownAnnotation   Reason = "UnknownAnnotation"
	InvalidAnnotation   Reason = "InvalidAnnotation"
	RecordPreset        Reason = "RecordPreset"
	ContainersUnnamed   Reason = "ContainersUnnamed"
	ContainerUnknown    Reason = "ContainerUnknown"
	NameTaken           Reason = "NameTaken"
	VolumeTaken         Reason = "VolumeTaken"
	MountTaken          Reason = "MountTaken"
	VariableTaken       Reason = "VariableTaken"
	PortTaken           Reason = "PortTaken"
	CredentialsMounted  Reason = "CredentialsMounted"
	HostNamespaces      Reason = "HostNamespaces"
	ProcessesShared     Reason = "ProcessesShared"
	OtherSystem         Reason = "OtherSystem"
	VirtualNode         Reason = "VirtualNode"
	NamesNotResolved    Reason = "NamesNotResolved"
	MeshCapturesTraffic Reason = "MeshCapturesTraffic"
	QoSWouldChange      Reason = "QoSWouldChange"
	NameTooLong         Reason = "NameTooLong"
	Malformed           Reason = "Malformed"
)

// Reasons are all of them.
var Reasons = []Reason{
	NoPool, SeveralPools, NotListed, PoolDeleting, PoolNotReady, PoolTooOld, BudgetSpent, UnknownAnnotation, InvalidAnnotation, RecordPreset, ContainersUnnamed,
	ContainerUnknown, NameTaken, VolumeTaken, MountTaken, VariableTaken, PortTaken, CredentialsMounted, HostNamespaces, ProcessesShared, OtherSystem, VirtualNode,
	NamesNotResolved, MeshCapturesTraffic, QoSWouldChange, NameTooLong, Malformed,
}

// A Refusal says why a pod gets no sidecar, and what to do.
type Refusal struct {
	Reason  Reason
	Message string
}

func (r *Refusal) Error() string { return fmt.Sprintf("%s: %s", r.Reason, r.Message) }

func refuse(reason Reason, format string, arguments ...any) error {
	return &Refusal{reason, fmt.Sprintf(format, arguments...)}
}
