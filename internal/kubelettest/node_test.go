package kubelettest

import (
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	apiServer        = "https://" + nodeAddress
	etcdAddress      = "http://127.0.0.1:2379"
	containerdSocket = "/run/containerd/containerd.sock"
	staticPods       = "/run/static-pods"
)

// node is the private host with its control plane and its kubelet. One is shared by all tests.
type node struct {
	workspace, programs, binaries, logs string

	pki        *authority
	etcd       *daemon
	apiserver  *daemon
	containerd *daemon
	kubelet    *daemon
	client     kubernetes.Interface
	installed  []*manifest // in the order of profiles
	rest       *rest.Config
}

var shared *node

func startSharedNode() error {
	n := &node{
		workspace: os.Getenv(workspaceVariable), programs: os.Getenv(programsVariable),
		binaries: os.Getenv(binariesVariable), logs: os.Getenv(logsVariable),
	}
	if n.logs == "" {
		n.logs = filepath.Join(n.workspace, "logs")
	}

	if err := os.RemoveAll(n.logs); err != nil {
		return err
	}

	for _, dir := range []string{n.logs, staticPods, filepath.Join(n.workspace, "cni")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}

	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"certificates", n.createPKI}, {"containerd", n.startContainerd}, {"image", n.importImage},
		{"etcd", n.startEtcd}, {"kube-apiserver", n.startAPIServer}, {"kubelet", n.startKubelet},
		{"objects", n.createObjects},
	} {
		began := time.Now()

		if err := step.run(); err != nil {
			return fmt.Errorf("start the node: %s: %w (logs in %s)", step.name, err, n.logs)
		}

		fmt.Printf("%s: %s\n", step.name, time.Since(began).Round(time.Millisecond))
	}

	shared = n

	return nil
}

func (n *node) createPKI() (err error) {
	if n.pki, err = newAuthority(filepath.Join(n.workspace, "pki")); err != nil {
		return err
	}

	return errors.Join(
		n.pki.issue("apiserver", pkix.Name{CommonName: "kube-apiserver"}),
		n.pki.issue("admin", pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}),
		n.pki.issue("kubelet", pkix.Name{CommonName: "system:node:" + nodeName, Organization: []string{"system:nodes"}}),
		n.pki.issue("control", pkix.Name{CommonName: nodeName}),
		n.pki.newKey("service-accounts"),
	)
}

func (n *node) newDaemon(name string, command ...string) *daemon {
	return &daemon{name: name, command: command, dir: n.logs}
}

func (n *node) startEtcd() error {
	n.etcd = n.newDaemon("etcd", "etcd", "--data-dir="+filepath.Join(n.workspace, "etcd"),
		"--listen-client-urls="+etcdAddress, "--advertise-client-urls="+etcdAddress,
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=default=http://127.0.0.1:2380")

	return n.etcd.start()
}

// auditPolicy records every request of a service account, with its verb and resource.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - {level: Metadata, userGroups: ["system:serviceaccounts"]}
  - level: None
`

func (n *node) startAPIServer() error {
	policy := filepath.Join(n.workspace, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o644); err != nil {
		return err
	}

	n.apiserver = n.newDaemon("kube-apiserver", filepath.Join(n.binaries, "kube-apiserver"),
		"--etcd-servers="+etcdAddress, "--advertise-address="+nodeAddress, "--secure-port=443",
		"--tls-cert-file="+n.pki.certFile("apiserver"), "--tls-private-key-file="+n.pki.keyFile("apiserver"),
		"--client-ca-file="+n.pki.certFile("ca"), "--authorization-mode=Node,RBAC",
		// By these it forwards ports of pods.
		"--kubelet-client-certificate="+n.pki.certFile("admin"), "--kubelet-client-key="+n.pki.keyFile("admin"),
		"--kubelet-preferred-address-types=InternalIP",
		"--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+n.pki.keyFile("service-accounts"),
		"--service-account-signing-key-file="+n.pki.keyFile("service-accounts"),
		"--service-cluster-ip-range=10.96.0.0/16", "--profiling=false",
		"--audit-policy-file="+policy, "--audit-log-path="+n.auditLog(), "--audit-log-mode=blocking")
	if err := n.apiserver.start(); err != nil {
		return err
	}

	n.rest = &rest.Config{Host: apiServer, QPS: 100, Burst: 200, TLSClientConfig: rest.TLSClientConfig{
		CAFile: n.pki.certFile("ca"), CertFile: n.pki.certFile("admin"), KeyFile: n.pki.keyFile("admin"),
	}}

	client, err := kubernetes.NewForConfig(n.rest)
	if err != nil {
		return err
	}

	n.client = client

	return n.awaitAPIServer()
}

func (n *node) auditLog() string { return filepath.Join(n.logs, "audit.log") }

func (n *node) awaitAPIServer() error {
	return await(3*time.Minute, func() error {
		if err := errors.Join(n.etcd.running(), n.apiserver.running()); err != nil {
			return err
		}

		return n.client.CoreV1().RESTClient().Get().AbsPath("/readyz").Timeout(5 * time.Second).
			Do(context.Background()).Error()
	})
}

const containerdConfig = `version = 2
root = "%[1]s/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "` + containerdSocket + `"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + podImage + `"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia] # without NVIDIA's hook, which has no driver here
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "%[1]s/cni"
`

// podNetwork gives pods addresses that only the node reaches.
const podNetwork = `{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0",
"isGateway": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]],
"routes": [{"dst": "0.0.0.0/0"}]}}]}
`

func (n *node) startContainerd() error {
	config := filepath.Join(n.workspace, "containerd.toml")
	if err := errors.Join(
		os.WriteFile(config, fmt.Appendf(nil, containerdConfig, n.workspace), 0o644),
		os.WriteFile(filepath.Join(n.workspace, "cni", "pods.conflist"), []byte(podNetwork), 0o644),
	); err != nil {
		return err
	}

	n.containerd = n.newDaemon("containerd", "containerd", "--config", config)
	if err := n.containerd.start(); err != nil {
		return err
	}

	return await(time.Minute, func() error {
		if err := n.containerd.running(); err != nil {
			return err
		}

		return exec.Command("ctr", "--address", containerdSocket, "version").Run()
	})
}

func (n *node) importImage() error {
	archive := filepath.Join(n.workspace, "image.tar")
	if err := writeImages(archive, n.programs, n.workspace); err != nil {
		return err
	}

	out, err := exec.Command("ctr", "--address", containerdSocket, "--namespace", "k8s.io", "images", "import",
		archive).CombinedOutput()
	if err != nil {
		return fmt.Errorf("import: %w: %s", err, out)
	}

	return os.Remove(archive)
}

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: %[1]s}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /%[2]s
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
enforceNodeAllocatable: []
containerRuntimeEndpoint: unix://` + containerdSocket + `
staticPodPath: ` + staticPods + `
fileCheckFrequency: 1s
readOnlyPort: 0
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: "1Mi", nodefs.available: "0%%", imagefs.available: "0%%"}
registerWithTaints: []
`

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "%[1]s", certificate-authority: %[2]s}}]
users: [{name: u, user: {client-certificate: %[3]s, client-key: %[4]s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

func (n *node) startKubelet() error {
	config := filepath.Join(n.workspace, "kubelet.yaml")

	access := filepath.Join(n.workspace, "kubeconfig")
	if err := errors.Join(
		os.WriteFile(config, fmt.Appendf(nil, kubeletConfig, n.pki.certFile("ca"), cgroupName(n.workspace)), 0o644),
		os.WriteFile(access, fmt.Appendf(nil, kubeconfig, apiServer, n.pki.certFile("ca"), n.pki.certFile("kubelet"),
			n.pki.keyFile("kubelet")), 0o600),
	); err != nil {
		return err
	}

	n.kubelet = n.newDaemon("kubelet", filepath.Join(n.binaries, "kubelet"), "--config="+config, "--kubeconfig="+access,
		"--hostname-override="+nodeName, "--cert-dir="+filepath.Join(n.workspace, "kubelet-certs"), "--v=2",
		// The labels of gpu-feature-discovery and of NVIDIA's operator, which the chart's pods ask
		// for.
		"--node-labels=nvidia.com/gpu.present=true,nvidia.com/gpu.deploy.dcgm-exporter=true")
	if err := n.kubelet.start(); err != nil {
		return err
	}

	return n.awaitNodeReady()
}

func (n *node) awaitNodeReady() error {
	return await(3*time.Minute, func() error {
		if err := n.kubelet.running(); err != nil {
			return err
		}

		object, err := n.client.CoreV1().Nodes().Get(context.Background(), nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}

		for _, c := range object.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}

		return fmt.Errorf("the node is not ready: %v", object.Status.Conditions)
	})
}

// killKubelet ends the kubelet as a crash does.
func (n *node) killKubelet() error { return n.kubelet.stop(syscall.SIGKILL) }
