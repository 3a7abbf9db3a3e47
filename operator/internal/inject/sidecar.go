// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"farpool.dev/farpool/api/v1alpha1"
)

// What an application finds in its containers.
const (
	SocketDirectory = "/run/farpool"
	SocketPath      = SocketDirectory + "/redis.sock"
	VariableSocket  = "FARPOOL_SOCKET"
	VariableURL     = "FARPOOL_URL"
)

// ConfigKey is the key, in the Secret of a namespace, of the configuration that its sidecars begin with.
const ConfigKey = "farpool.toml"

// Limits are what spec.limits says to sidecars, as lines of their configuration.
func Limits(pool *v1alpha1.KVPool) []string {
	limits := pool.Spec.Limits
	if limits == nil {
		return nil
	}
	var lines []string
	add := func(value *int32, format string) {
		if value != nil {
			lines = append(lines, fmt.Sprintf(format, *value))
		}
	}
	add(limits.MaxConnections, "max-connections = %d")
	add(limits.MaxPipeline, "max-pipeline = %d")
	add(limits.OperationDeadlineMilliseconds, "operation-deadline = \"%dms\"")
	return lines
}

// LimitsInRecord says in the record of a pod which limits its sidecar began with. A pod's record never changes.
func LimitsInRecord(pool *v1alpha1.KVPool) string { return strings.Join(Limits(pool), ", ") }

// CredentialsDirectory is where a sidecar finds the Secret.
const CredentialsDirectory = "/etc/farpool/credentials"

const (
	volumeSocket      = "farpool-socket"
	volumeState       = "farpool-state"
	volumeCredentials = "farpool-credentials"
	volumeNoToken     = "farpool-no-token"

	stateDirectory = "/var/lib/farpool"
	// tokenDirectory is where Kubernetes mounts a token into each container that mounts nothing there. The data plane holds no credentials of Kubernetes.
	tokenDirectory = "/var/run/secrets/kubernetes.io/serviceaccount"

	unprivilegedUser = 65532
	mebibyte         = 1 << 20
)

func mount(volume, directory string, readOnly bool) object {
	mounted := object{"name": volume, "mountPath": directory}
	if readOnly {
		mounted["readOnly"] = true
	}
	return mounted
}

// asks returns a command that asks the sidecar itself, on 127.0.0.1, so that no port of the pod is taken and no service mesh is in between. It prints the answer
// for people if that is no 200.
func (o *options) asks(what string) object {
	script := fmt.Sprintf(`exec 3<>/dev/tcp/127.0.0.1/%d && printf 'GET %s HTTP/1.0\r\n\r\n' >&3 && answer=$(cat <&3) || exit 1; case $answer in HTTP/1.?' 200 '*) ;; *) echo "${answer##*$'\r\n'}"; exit 1 ;; esac`, o.healthPort, what)
	return object{"command": []any{"bash", "-c", script}}
}

// memoryFor returns how much of replies a sidecar may hold: a quarter of its memory.
func (o *options) memoryFor() int64 {
	memory := int64(256 * mebibyte)
	if o.memory != nil {
		memory = o.memory.Value()
	}
	return min(max(memory/4/mebibyte, 16), 256)
}

// container returns the sidecar.
func (i *injecting) container() (object, error) {
	o := i.options
	listen := noPort
	if o.port != 0 {
		listen = fmt.Sprintf("127.0.0.1:%d", o.port)
	}
	held := o.memoryFor()
	security := object{
		"allowPrivilegeEscalation": false,
		"capabilities":             object{"drop": []any{"ALL"}},
		"readOnlyRootFilesystem":   true,
		"runAsNonRoot":             true,
		"seccompProfile":           object{"type": "RuntimeDefault"},
	}
	if !i.settings.PlatformUsers {
		security["runAsUser"], security["runAsGroup"] = unprivilegedUser, unprivilegedUser
	}
	container := object{
		"name":            v1alpha1.SidecarContainer,
		"image":           i.pool.Status.Template.Image,
		"imagePullPolicy": "IfNotPresent",
		// An init container that goes on: others begin when its startup probe succeeds, and it ends after them.
		"restartPolicy": "Always",
		"command":       []any{"farpool-compute-shard"},
		"args": []any{
			"--config=" + CredentialsDirectory + "/" + ConfigKey,
			"--name=" + v1alpha1.SidecarIdentity(i.namespace) + "-$(POD_NAME)",
			"--listen=" + listen,
			"--unix-socket=" + SocketPath,
			"--unix-socket-mode=0666",
			"--agent-listen=none",
			fmt.Sprintf("--metrics-listen=127.0.0.1:%d", o.healthPort),
			"--map-cache=" + stateDirectory + "/map-cache",
			"--threads=1",
			// The application has ended before: nobody comes any more.
			"--drain=0s",
			fmt.Sprintf("--max-held-bytes=%dMi", held),
			fmt.Sprintf("--max-unread-bytes=%dMi", held/2),
			fmt.Sprintf("--max-reply-bytes=%dMi", held/4),
			"--log-level=" + o.logLevel,
		},
		"env":           []any{object{"name": "POD_NAME", "valueFrom": object{"fieldRef": object{"apiVersion": "v1", "fieldPath": "metadata.name"}}}},
		"startupProbe":  object{"exec": o.asks("/readyz"), "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 600},
		"livenessProbe": object{"exec": o.asks("/healthz"), "periodSeconds": 30, "timeoutSeconds": 10, "failureThreshold": 4},
		"volumeMounts": []any{
			mount(volumeCredentials, CredentialsDirectory, true),
			mount(volumeSocket, SocketDirectory, false),
			mount(volumeState, stateDirectory, false),
			mount(volumeNoToken, tokenDirectory, true),
		},
		"securityContext":          security,
		"terminationMessagePolicy": "FallbackToLogsOnError",
	}
	if i.again {
		return container, nil // limits of the namespace may have changed its resources since
	}
	resources, err := resourcesFor(classOf(i.root), o)
	if err != nil {
		return nil, err
	}
	if resources != nil {
		container["resources"] = resources
	}
	return container, nil
}

// addSidecar adds the container, or checks that the one that is there is as it would be.
func (i *injecting) addSidecar() error {
	container, err := i.container()
	if err != nil {
		return err
	}
	if i.again {
		there := named(objects(i.root, "spec", "initContainers"), v1alpha1.SidecarContainer)
		capabilities, _ := at[object](there, "securityContext/capabilities")
		if !holds(there, container) || isTrue(there, "securityContext", "privileged") || capabilities["add"] != nil {
			return refuse(NameTaken, "the pod has a container %s that the injector has not made so: take it out of the manifest, with the volumes whose names begin with farpool-", v1alpha1.SidecarContainer)
		}
		return nil
	}
	index, err := i.place()
	if err != nil {
		return err
	}
	i.insert(index, container, "spec", "initContainers")
	return nil
}

// addVolumes adds what the sidecar mounts.
func (i *injecting) addVolumes() error {
	empty := func(name string, bytes string) object {
		return object{"name": name, "emptyDir": object{"sizeLimit": bytes}}
	}
	for _, volume := range []object{
		empty(volumeSocket, "1Mi"),
		empty(volumeState, "16Mi"),
		{"name": volumeCredentials, "secret": object{
			"secretName":  v1alpha1.SidecarSecretName(i.pool.Name, i.pool.UID, i.namespace),
			"defaultMode": 0o444, // the sidecar is not root, and nobody else mounts it
		}},
		empty(volumeNoToken, "1Mi"),
	} {
		name := text(volume, "name")
		switch there := named(objects(i.root, "spec", "volumes"), name); {
		case there == nil:
			i.append(volume, "spec", "volumes")
		case !i.again || !holds(there, volume):
			return refuse(VolumeTaken, "a volume of the pod is called %s: give it another name", name)
		}
	}
	for _, list := range []string{"containers", "initContainers"} {
		for _, container := range objects(i.root, "spec", list) {
			for _, mounted := range objects(container, "volumeMounts") {
				if name := text(mounted, "name"); name == volumeCredentials || name == volumeState || name == volumeNoToken {
					if text(container, "name") != v1alpha1.SidecarContainer {
						return refuse(CredentialsMounted, "container %s mounts volume %s, which is the sidecar's alone: take that mount away", text(container, "name"), name)
					}
				}
			}
		}
	}
	return nil
}

// addToContainers gives the chosen containers the socket, and variables that say where it is. Variables come first, so that others of the container can refer to
// them.
func (i *injecting) addToContainers() error {
	url := "unix://" + SocketPath
	if i.options.port != 0 {
		url = fmt.Sprintf("redis://127.0.0.1:%d/0", i.options.port)
	}
	for _, list := range []string{"containers", "initContainers"} {
		for index, container := range objects(i.root, "spec", list) {
			name := text(container, "name")
			if name == v1alpha1.SidecarContainer || !slices.Contains(i.targets, name) {
				continue
			}
			within := []string{"spec", list, fmt.Sprint(index)}
			if err := i.addMount(container, within); err != nil {
				return err
			}
			for position, variable := range []object{{"name": VariableSocket, "value": SocketPath}, {"name": VariableURL, "value": url}} {
				switch there := named(objects(container, "env"), text(variable, "name")); {
				case there == nil:
					i.insert(position, variable, append(slices.Clone(within), "env")...)
				case !holds(there, variable):
					return refuse(VariableTaken, "container %s sets %s itself, to something else than %q: take that variable away", name, text(variable, "name"), text(variable, "value"))
				}
			}
		}
	}
	return nil
}

func (i *injecting) addMount(container object, within []string) error {
	wanted := mount(volumeSocket, SocketDirectory, true)
	for _, mounted := range objects(container, "volumeMounts") {
		where := path.Clean(text(mounted, "mountPath"))
		if where == SocketDirectory && holds(mounted, wanted) {
			return nil
		}
		if where == SocketDirectory || where == "/var"+SocketDirectory || strings.HasPrefix(where, SocketDirectory+"/") {
			return refuse(MountTaken, "container %s mounts volume %s at %s, where the sidecar's socket is to be: mount it elsewhere", text(container, "name"), text(mounted, "name"), where)
		}
	}
	i.append(wanted, append(slices.Clone(within), "volumeMounts")...)
	return nil
}
