package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	// Kubeconfig files may name these.
	_ "k8s.io/client-go/plugin/pkg/client/auth"

	"github.com/mig-exporter/mig-exporter/cmd/internal/migctl"
)

const (
	programName = "kubectl mig"
	programHelp = "Show and repartition the GPUs of a cluster's nodes, from anywhere that kubectl works. Each " +
		"command names the node: kubectl mig get gpu-01. It is migctl over a port-forward to the node's " +
		"exporter, in the namespace of -n; docs/kubectl-mig.md has the rights that it needs. plan and apply with " +
		"-f FILE, of the kind Fleet, and without a node are about many nodes: a run, which --resume and rollback " +
		"--run take up (docs/kubectl-mig-runs.md)."
)

// plugin is one run of kubectl mig.
type plugin struct {
	flags    *flags
	runFlags runFlags
	cluster  func() (*cluster, error) // the same for each call

	mu       sync.Mutex
	settings *settings // nil until readSettings has read them
}

func newPlugin() *plugin {
	p := &plugin{flags: newFlags()}
	p.cluster = sync.OnceValues(p.openCluster)

	return p
}

// program returns the commands of migctl over this plugin's connections.
func (p *plugin) program() *migctl.Program {
	return &migctl.Program{
		Name:    programName,
		Help:    programHelp,
		Flags:   p.flags.declare,
		Groups:  p.flags.groups(),
		Prefix:  p.flags.prefix,
		Nodes:   p.nodes,
		Connect: p.connect,
		Extend:  p.extend,
		Owns:    p.ownsLine,
		Own:     p.runOwn,
	}
}

// openCluster reads the kubeconfig.
func (p *plugin) openCluster() (*cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = p.flags.kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &p.flags.overrides)

	config, err := loader.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}

	config.UserAgent = rest.DefaultKubernetesUserAgent()

	return newCluster(config, cmp.Or(p.flags.overrides.Context.Namespace, defaultNamespace))
}

// nodes lists the nodes that have an exporter.
func (p *plugin) nodes(ctx context.Context) ([]string, error) {
	c, err := p.cluster()
	if err != nil {
		return nil, err
	}

	s, err := p.readSettings(ctx, c)
	if err != nil {
		return nil, err
	}

	pods, err := c.listPods(ctx, s.selector, "")
	if err != nil {
		return nil, err
	}

	var nodes []string

	for i := range pods {
		if name := pods[i].Spec.NodeName; name != "" {
			nodes = append(nodes, name)
		}
	}

	slices.Sort(nodes)

	return slices.Compact(nodes), nil
}

// readSettings reads the ConfigMap, once for all nodes.
func (p *plugin) readSettings(ctx context.Context, c *cluster) (*settings, error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.settings != nil {
		return p.settings, nil
	}

	s, err := c.readSettings(ctx, p.flags.configMap)
	if err != nil {
		return nil, err
	}

	p.settings = s

	return s, nil
}

// connect connects to the exporter of a node. It requests a token only after the exporter has proved
// by its certificate that it is the exporter.
func (p *plugin) connect(
	ctx context.Context, node string, rights []string,
) (*migctl.Connection, error) {
	account, err := p.account(rights)
	if err != nil {
		return nil, err
	}

	c, err := p.cluster()
	if err != nil {
		return nil, err
	}

	s, err := p.readSettings(ctx, c)
	if err != nil {
		return nil, err
	}

	t := newTransport(
		s,
		func(ctx context.Context) (*corev1.Pod, error) { return c.findPod(ctx, s.selector, node) },
		c.openTunnel,
		&tokenSource{
			request: func(ctx context.Context) (token, error) {
				return c.requestToken(ctx, account, audienceOf(node))
			},
			now: time.Now,
		},
	)

	if err := t.verifyServer(ctx); err != nil {
		t.close()
		return nil, err
	}

	// If the right to request a token is missing, we find out here, before the command has done
	// anything.
	if _, _, err := t.tokens.get(ctx); err != nil {
		t.close()
		return nil, err
	}

	return &migctl.Connection{Transport: t, Close: t.close}, nil
}

// account returns the service account for a command that needs the rights, the strongest of which is
// first. The chart's account for a right may also do what weaker rights allow.
func (p *plugin) account(rights []string) (string, error) {
	if p.flags.serviceAccount != "" {
		return p.flags.serviceAccount, nil
	}

	if len(rights) > 1 && rights[0] == "force" && rights[1] == "take-over" {
		return "", fmt.Errorf("no account of the chart has force and take-over both: name one of "+
			"yours that has, with --service-account (verbs of %s)", rightsResource)
	}

	return p.flags.configMap + "-" + rights[0], nil
}
