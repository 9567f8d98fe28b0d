package main

import "fmt"

// verdict says how the program treats a flag of dcgm-exporter, or its environment variable.
type verdict int

const (
	refused verdict = iota // the program does not start: it would not serve what the flag asks for
	warned                 // the flag has no effect, and a warning is logged
)

// unservedAliases lists the flags of dcgm-exporter, up to 4.8.4 and its source on the way to 4.9, for
// which this program has no flag. docs/migration.md has the same list; a test compares them.
func unservedAliases() []alias {
	always := []string{"false", "true"}

	return []alias{
		{name: "configmap-data", short: "m", env: "DCGM_EXPORTER_CONFIGMAP_DATA", verdict: refused,
			accepted: []string{"none"},
			advice:   "mount the ConfigMap and name the file with --dcgm.counters"},
		{
			name:     "config-file",
			env:      "DCGM_EXPORTER_CONFIG_FILE",
			verdict:  refused,
			accepted: []string{""},
			advice:   "give its settings as flags or environment variables",
		},
		{
			name:     "devices",
			short:    "d",
			env:      "DCGM_EXPORTER_DEVICES_STR",
			verdict:  refused,
			accepted: []string{"f", "g+i"},
			advice: "GPUs and GPU instances are served always, a GPU's own values once; drop series with " +
				"metric_relabel_configs",
		},
		{
			name:     "use-old-namespace",
			short:    "o",
			env:      "DCGM_EXPORTER_USE_OLD_NAMESPACE",
			switches: true,
			verdict:  refused,
			accepted: []string{
				"false",
			},
			advice: "the names of dcgm-exporter 1.x are not served; change the queries",
		},
		{
			name:     "replace-blanks-in-model-name",
			short:    "rbmn",
			env:      "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME",
			switches: true,
			verdict:  refused,
			accepted: []string{"false"},
			advice:   "rewrite the label modelName with metric_relabel_configs",
		},
		{
			name:     "fake-gpus",
			env:      "DCGM_EXPORTER_USE_FAKE_GPUS",
			switches: true,
			verdict:  refused,
			accepted: []string{"false"},
			advice:   "use --driver=sim and --sim.scenario",
		},
		{
			name:     "kubernetes-enable-pod-labels",
			env:      "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS",
			switches: true,
			verdict:  refused,
			accepted: []string{"false"},
			advice:   "name each label with --kubernetes.pod-label, and the node with --kubernetes.node-name",
		},
		{
			name:     "kubernetes-pod-label-allowlist-regex",
			env:      "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX",
			verdict:  refused,
			accepted: []string{""},
			advice:   "name each label with --kubernetes.pod-label, and the node with --kubernetes.node-name",
		},
		{
			name:     "kubernetes-enable-pod-uid",
			env:      "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID",
			switches: true,
			verdict:  refused,
			accepted: []string{
				"false",
			},
			advice: "UIDs of pods are not served; namespace and pod identify one",
		},
		{
			name:     "container-labels",
			env:      "DCGM_EXPORTER_CONTAINER_LABELS",
			switches: true,
			verdict:  refused,
			accepted: []string{"false"},
			advice:   "leave it out; no container runtime is asked",
		},
		{
			name:     "kubernetes-gpu-id-type",
			env:      "DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE",
			verdict:  refused,
			accepted: []string{"uid", "device-name"},
			advice:   "expected uid or device-name; device ids of all forms are understood",
		},
		{
			name:     "kubernetes-enable-dra",
			env:      "KUBERNETES_ENABLE_DRA",
			switches: true,
			accepted: always,
			advice:   "on always",
		},
		{
			name:     "enable-exporter-metrics",
			env:      "DCGM_EXPORTER_ENABLE_EXPORTER_METRICS",
			switches: true,
			accepted: always,
			advice:   "on always",
		},
		{
			name:     "enable-gpu-bind-unbind-watch",
			env:      "DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH",
			switches: true,
			accepted: always,
			advice:   "on always: a GPU that is being unbound is released, and one that is bound later is found",
		},
		{
			name:     "disable-startup-validate",
			env:      "DISABLE_STARTUP_VALIDATE",
			switches: true,
			accepted: always,
			advice:   "on always; the program starts without a driver, too",
		},
	}
}

// harmlessAliases lists the flags of dcgm-exporter that would change nothing that this program
// serves. If they are given, we log a warning.
func harmlessAliases() []alias {
	return []alias{
		{
			name:     "kubernetes-virtual-gpus",
			env:      "KUBERNETES_VIRTUAL_GPUS",
			switches: true,
			verdict:  warned,
			accepted: []string{"false"},
			advice:   "a shared device keeps one series; its containers are in the native info families",
		},
		{
			name:     "switch-devices",
			short:    "s",
			env:      "DCGM_EXPORTER_OTHER_DEVICES_STR",
			verdict:  warned,
			accepted: []string{"f"},
			advice:   "NVSwitches are not served",
		},
		{
			name:     "cpu-devices",
			short:    "p",
			env:      "DCGM_EXPORTER_CPU_DEVICES_STR",
			verdict:  warned,
			accepted: []string{"f"},
			advice:   "CPUs are not served",
		},

		{
			name:     "health-require-gpus",
			env:      "DCGM_EXPORTER_HEALTH_REQUIRE_GPUS",
			switches: true,
			verdict:  warned,
			accepted: []string{
				"false",
			},
			advice: "/-/ready answers 503 until there is a fresh reading of the node",
		},
		{
			name:     "container-runtime-socket",
			env:      "DCGM_CONTAINER_RUNTIME_SOCKET",
			verdict:  warned,
			accepted: []string{""},
			advice:   "no container runtime is asked",
		},
		{
			name:     "gpu-bind-unbind-poll-interval",
			env:      "DCGM_EXPORTER_GPU_BIND_UNBIND_POLL_INTERVAL",
			verdict:  warned,
			accepted: []string{"1s"},
			advice:   "every poll asks the driver for events, and the kernel which GPUs are bound",
		},

		{
			name:     "web-read-timeout",
			env:      "DCGM_EXPORTER_WEB_READ_TIMEOUT",
			verdict:  warned,
			accepted: []string{"10s"},
			advice:   "requests are bounded always",
		},
		{
			name:     "web-write-timeout",
			env:      "DCGM_EXPORTER_WEB_WRITE_TIMEOUT",
			verdict:  warned,
			accepted: []string{"30s"},
			advice:   "responses are bounded always",
		},

		{
			name:     "max-concurrent-scrapes",
			env:      "DCGM_EXPORTER_MAX_CONCURRENT_SCRAPES",
			verdict:  warned,
			accepted: []string{"16"},
			advice:   fmt.Sprintf("%d scrapes are served at the same time", maxScrapes),
		},

		// What DCGM keeps and logs.
		{
			name:     "watch-max-keep-age",
			env:      "DCGM_EXPORTER_WATCH_MAX_KEEP_AGE",
			verdict:  warned,
			accepted: []string{"10m"},
			advice:   "DCGM keeps the last value only",
		},
		{
			name:     "watch-max-keep-samples",
			env:      "DCGM_EXPORTER_WATCH_MAX_KEEP_SAMPLES",
			verdict:  warned,
			accepted: []string{"0"},
			advice:   "DCGM keeps the last value only",
		},
		{
			name:     "enable-dcgm-log",
			env:      "DCGM_EXPORTER_ENABLE_DCGM_LOG",
			switches: true,
			verdict:  warned,
			accepted: []string{"false"},
			advice:   "DCGM's log is not written; see --log.level=debug",
		},
		{
			name:     "dcgm-log-level",
			env:      "DCGM_EXPORTER_DCGM_LOG_LEVEL",
			verdict:  warned,
			accepted: []string{"NONE"},
			advice:   "DCGM's log is not written; see --log.level=debug",
		},

		// What dcgm-exporter writes to files for its developers.
		{name: "dump-enabled", env: "DCGM_EXPORTER_DUMP_ENABLED", switches: true, verdict: warned,
			accepted: []string{"false"},
			advice:   "mig-exporter capture writes what the driver says to a file"},
		{name: "dump-directory", env: "DCGM_EXPORTER_DUMP_DIRECTORY", verdict: warned,
			accepted: []string{"/tmp/dcgm-exporter-debug"},
			advice:   "nothing is dumped"},
		{
			name:     "dump-retention",
			env:      "DCGM_EXPORTER_DUMP_RETENTION",
			verdict:  warned,
			accepted: []string{"24"},
			advice:   "nothing is dumped",
		},
		{
			name:     "dump-compression",
			env:      "DCGM_EXPORTER_DUMP_COMPRESSION",
			switches: true,
			verdict:  warned,
			accepted: []string{"true"},
			advice:   "nothing is dumped",
		},
	}
}
