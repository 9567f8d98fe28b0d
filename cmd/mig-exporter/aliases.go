package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// alias is a flag of dcgm-exporter that means the same as flags of this program.
type alias struct {
	name  string // without dashes
	short string // one letter, or empty
	env   string
	// flag is the one of this program that it stands for; where the command line or the environment has that, the alias'
	// environment variable counts for nothing.
	flag string
	// switches has no value, and is on where it is named.
	switches bool
	// translate turns a value into flags of this program.
	translate func(value string) ([]string, error)
}

// aliases lists dcgm-exporter's flags and environment variables that are understood.
func aliases() []alias {
	as := func(flag string) func(string) ([]string, error) {
		return func(value string) ([]string, error) { return []string{"--" + flag + "=" + value}, nil }
	}
	return []alias{
		{name: "collectors", short: "f", env: "DCGM_EXPORTER_COLLECTORS", flag: "dcgm.counters", translate: as("dcgm.counters")},
		{name: "address", short: "a", env: "DCGM_EXPORTER_LISTEN", flag: "web.listen-address", translate: as("web.listen-address")},
		{name: "collect-interval", short: "c", env: "DCGM_EXPORTER_INTERVAL", flag: "poll.interval", translate: milliseconds},
		{name: "kubernetes", short: "k", env: "DCGM_EXPORTER_KUBERNETES", flag: "kubernetes.labels", switches: true,
			translate: oneOf("kubernetes.labels", "container", "off")},
		{name: "remote-hostengine-info", short: "r", env: "DCGM_REMOTE_HOSTENGINE_INFO", flag: "dcgm.address",
			translate: func(value string) ([]string, error) {
				return []string{"--dcgm.mode=remote", "--dcgm.address=" + strings.TrimPrefix(value, "tcp://")}, nil
			}},
		{name: "no-hostname", short: "n", env: "DCGM_EXPORTER_NO_HOSTNAME", flag: "dcgm.hostname-label", switches: true,
			translate: oneOf("dcgm.hostname-label", "off", "")},
		{name: "web-config-file", env: "DCGM_EXPORTER_WEB_CONFIG_FILE", flag: "web.config.file", translate: as("web.config.file")},
		{name: "web-systemd-socket", env: "DCGM_EXPORTER_SYSTEMD_SOCKET", flag: "web.systemd-socket", switches: true,
			translate: oneOf("web.systemd-socket", "true", "false")},
		{name: "pod-resources-kubelet-socket", env: "DCGM_POD_RESOURCES_KUBELET_SOCKET", flag: "kubernetes.socket",
			translate: as("kubernetes.socket")},
		{name: "nvidia-resource-names", env: "NVIDIA_RESOURCE_NAMES", flag: "kubernetes.resource-name", translate: resourceNames},
		{name: "hpc-job-mapping-dir", env: "DCGM_HPC_JOB_MAPPING_DIR", flag: "hpc.job-mapping-dir", translate: as("hpc.job-mapping-dir")},
		{name: "enable-pprof", env: "DCGM_EXPORTER_ENABLE_PPROF", flag: "web.pprof", switches: true,
			translate: oneOf("web.pprof", "true", "false")},
		{name: "max-concurrent-scrapes", env: "DCGM_EXPORTER_MAX_CONCURRENT_SCRAPES", flag: "web.max-scrapes",
			translate: as("web.max-scrapes")},
		{name: "debug", env: "DCGM_EXPORTER_DEBUG", flag: "log.level", switches: true, translate: oneOf("log.level", "debug", "")},
		{name: "log-format", env: "DCGM_EXPORTER_LOG_FORMAT", flag: "log.format", translate: logFormat},
	}
}

// oneOf translates a switch into one value of a flag or another; an empty one is no flag.
func oneOf(flag, on, off string) func(string) ([]string, error) {
	return func(value string) ([]string, error) {
		is, err := strconv.ParseBool(value)
		if err != nil {
			return nil, fmt.Errorf("%q: expected true or false", value)
		}
		chosen := off
		if is {
			chosen = on
		}
		switch {
		case chosen == "":
			return nil, nil
		case chosen == "true": // a switch here, too
			return []string{"--" + flag}, nil
		case chosen == "false":
			return []string{"--no-" + flag}, nil
		}
		return []string{"--" + flag + "=" + chosen}, nil
	}
}

func milliseconds(value string) ([]string, error) {
	n, err := strconv.ParseUint(value, 10, 31)
	if err != nil {
		return nil, fmt.Errorf("%q: expected a number of milliseconds", value)
	}
	return []string{"--poll.interval=" + (time.Duration(n) * time.Millisecond).String()}, nil
}

func resourceNames(value string) ([]string, error) {
	var flags []string
	for name := range strings.SplitSeq(value, ",") {
		if name = strings.TrimSpace(name); name != "" {
			flags = append(flags, "--kubernetes.resource-name="+name)
		}
	}
	return flags, nil
}

func logFormat(value string) ([]string, error) {
	switch value {
	case "text":
		return []string{"--log.format=logfmt"}, nil
	case "json":
		return []string{"--log.format=json"}, nil
	}
	return nil, fmt.Errorf("%q: expected text or json", value)
}

// translateAliases replaces dcgm-exporter's flags in a command line by this program's, and puts those that its environment
// variables stand for before them.
func translateAliases(args []string, lookup func(string) (string, bool)) ([]string, error) {
	var out []string
	known := aliases()
	for i := 0; i < len(args); i++ {
		if args[i] == "--" {
			out = append(out, args[i:]...)
			break
		}
		name, value, hasValue := strings.Cut(args[i], "=")
		a := findAlias(known, name)
		switch {
		case a == nil:
			out = append(out, args[i])
			continue
		case hasValue:
		case a.switches:
			value = "true"
		case i+1 < len(args):
			i++
			value = args[i]
		default:
			return nil, fmt.Errorf("%s: expected a value", name)
		}
		flags, err := a.translate(value)
		if err != nil {
			return nil, fmt.Errorf("%s=%w", name, err)
		}
		out = append(out, flags...)
	}
	fromEnvironment, err := translateEnvironment(known, out, lookup)
	return append(fromEnvironment, out...), err
}

// findAlias finds what a word of the command line is the name of: "-f", "-collectors" or "--collectors".
func findAlias(known []alias, word string) *alias {
	bare := strings.TrimPrefix(strings.TrimPrefix(word, "-"), "-")
	if bare == word {
		return nil
	}
	i := slices.IndexFunc(known, func(a alias) bool {
		return bare == a.name || len(bare) == 1 && bare == a.short && !strings.HasPrefix(word, "--")
	})
	if i < 0 {
		return nil
	}
	return &known[i]
}

// translateEnvironment gives the flags of dcgm-exporter's environment variables. What this program's own flags or variables
// say counts more.
func translateEnvironment(known []alias, args []string, lookup func(string) (string, bool)) ([]string, error) {
	var out []string
	for _, a := range known {
		value, set := lookup(a.env)
		if _, own := lookup(envName(a.flag)); !set || value == "" || own || named(args, a.flag) {
			continue
		}
		flags, err := a.translate(value)
		if err != nil {
			return nil, fmt.Errorf("%s=%w", a.env, err)
		}
		out = append(out, flags...)
	}
	return out, nil
}

// named tells whether a command line has a flag.
func named(args []string, flag string) bool {
	return slices.ContainsFunc(args, func(arg string) bool {
		name, _, _ := strings.Cut(arg, "=")
		return name == "--"+flag || name == "--no-"+flag
	})
}

// withoutEquivalent lists the environment variables of dcgm-exporter that are set and change nothing here.
func withoutEquivalent(lookup func(string) (string, bool)) []string {
	var set []string
	for _, name := range []string{
		"DCGM_EXPORTER_CONFIG_FILE", "DCGM_EXPORTER_CONFIGMAP_DATA", "DCGM_EXPORTER_DEVICES_STR", "DCGM_EXPORTER_OTHER_DEVICES_STR",
		"DCGM_EXPORTER_CPU_DEVICES_STR", "DCGM_EXPORTER_USE_OLD_NAMESPACE", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS",
		"DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID", "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX",
		"DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME", "DCGM_EXPORTER_CONTAINER_LABELS", "DCGM_CONTAINER_RUNTIME_SOCKET",
		"DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE", "DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE",
		"DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE", "DCGM_EXPORTER_USE_FAKE_GPUS", "DCGM_EXPORTER_HEALTH_REQUIRE_GPUS",
		"DCGM_EXPORTER_DUMP_ENABLED", "DCGM_EXPORTER_WEB_READ_TIMEOUT", "DCGM_EXPORTER_WEB_WRITE_TIMEOUT",
		"DCGM_EXPORTER_ENABLE_DCGM_LOG",
	} {
		if _, ok := lookup(name); ok {
			set = append(set, name)
		}
	}
	return set
}
