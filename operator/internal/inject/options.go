// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"farpool.dev/farpool/api/v1alpha1"
)

// Keys of annotations, after their prefix.
const (
	keyPool       = "pool"
	keyContainers = "containers"
	keyPort       = "port"
	keyHealthPort = "health-port"
	keyCPU        = "cpu"
	keyMemory     = "memory"
	keyLogLevel   = "log-level"
	keyInjected   = "injected"
)

var keys = []string{keyPool, keyContainers, keyPort, keyHealthPort, keyCPU, keyMemory, keyLogLevel}

const (
	defaultPort       = 6379
	defaultHealthPort = 7402
	noPort            = "none"
)

// longestShown is how much of a wrong value is said.
const longestShown = 100

// isName says whether a text can name a namespace, a pool or a container.
func isName(text string) bool { return len(validation.IsDNS1123Label(text)) == 0 }

var (
	leastMemory = resource.MustParse("64Mi")
	mostMemory  = resource.MustParse("64Gi")
	leastCPU    = resource.MustParse("10m")
	mostCPU     = resource.MustParse("64")
)

// options are what the annotations of a pod ask for.
type options struct {
	// pool is name or namespace/name; empty: the one that lists the namespace.
	pool       string
	containers []string
	// port on 127.0.0.1; zero: none.
	port, healthPort int
	cpu, memory      *resource.Quantity
	logLevel         string
	// record is what the injector wrote earlier; empty: nothing.
	record string
}

func readOptions(annotations object) (*options, error) {
	o := &options{port: defaultPort, healthPort: defaultHealthPort, logLevel: "info"}
	var names []string
	for name := range annotations {
		names = append(names, name)
	}
	slices.Sort(names) // the same refusal each time
	for _, name := range names {
		key, ours := strings.CutPrefix(name, v1alpha1.SidecarPrefix)
		if !ours {
			continue
		}
		value, ok := annotations[name].(string)
		if !ok {
			return nil, refuse(Malformed, "annotation %s is no text: Kubernetes takes nothing else", name)
		}
		if err := o.read(name, key, value); err != nil {
			return nil, err
		}
	}
	if o.port == o.healthPort {
		return nil, refuse(InvalidAnnotation, "the sidecar's port and health-port are both %d: set annotation %s to another, or %s to none", o.port, v1alpha1.SidecarPrefix+keyHealthPort, v1alpha1.SidecarPrefix+keyPort)
	}
	return o, nil
}

func (o *options) read(name, key, value string) error {
	invalid := func(should string) error {
		return refuse(InvalidAnnotation, "annotation %s is %q: %s", name, value[:min(len(value), longestShown)], should)
	}
	switch key {
	case keyInjected:
		o.record = value
	case keyPool:
		namespace, pool, two := strings.Cut(value, "/")
		if !isName(namespace) || two && !isName(pool) {
			return invalid("set it to the name of a KVPool of this namespace, or to namespace/name")
		}
		o.pool = value
	case keyContainers:
		for container := range strings.SplitSeq(value, ",") {
			if container = strings.TrimSpace(container); !isName(container) || slices.Contains(o.containers, container) {
				return invalid("set it to the names of containers, each once, separated by commas")
			}
			o.containers = append(o.containers, container)
		}
	case keyPort, keyHealthPort:
		number, err := strconv.Atoi(value)
		switch {
		case key == keyPort && value == noPort:
			o.port = 0
		case err != nil || number < 1024 || number > 65535 || strconv.Itoa(number) != value || number == portSession:
			return invalid("set it to a port from 1024 to 65535, other than 7400" + map[bool]string{true: ", or to none"}[key == keyPort])
		case key == keyPort:
			o.port = number
		default:
			o.healthPort = number
		}
	case keyCPU:
		quantity, err := resource.ParseQuantity(value)
		if err != nil || quantity.Cmp(leastCPU) < 0 || quantity.Cmp(mostCPU) > 0 {
			return invalid("set it to processors such as 250m or 1, from 10m to 64")
		}
		o.cpu = &quantity
	case keyMemory:
		quantity, err := resource.ParseQuantity(value)
		if err != nil || quantity.Cmp(leastMemory) < 0 || quantity.Cmp(mostMemory) > 0 {
			return invalid("set it to bytes such as 256Mi, from 64Mi to 64Gi")
		}
		o.memory = &quantity
	case keyLogLevel:
		if !slices.Contains([]string{"debug", "info", "warning", "error", "off"}, value) {
			return invalid("set it to debug, info, warning, error or off")
		}
		o.logLevel = value
	default:
		return refuse(UnknownAnnotation, "annotation %s is unknown: take it away, or correct it to one of %s, each after %s", name, strings.Join(keys, ", "), v1alpha1.SidecarPrefix)
	}
	return nil
}
