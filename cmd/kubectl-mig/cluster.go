package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/kube"
)

const (
	// rightsResource is the resource whose verbs are the rights on nodes.
	rightsResource = "partitions.mig-exporter.io"
	rightsDocs     = "docs/kubectl-mig.md#rights"

	// defaultSelector selects the exporter's pods as the Helm chart labels them.
	defaultSelector = "app.kubernetes.io/name=mig-exporter"
	// controlPort is the name of partition control's port in these pods.
	controlPort = "control"

	// tokenLifetime is the shortest lifetime that the API server allows.
	tokenLifetime = 10 * time.Minute
)

// cluster is a client of the API server. It is safe for concurrent use.
type cluster struct {
	config    *rest.Config
	set       kubernetes.Interface
	namespace string // the exporter's
}

// newCluster returns a client of the API server of config. It sends no requests.
func newCluster(config *rest.Config, namespace string) (*cluster, error) {
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeJSON // as kubectl; the default is protobuf

	set, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}

	return &cluster{config: config, set: set, namespace: namespace}, nil
}

// settings say how to find and to verify the exporters of a namespace.
type settings struct {
	roots      *x509.CertPool // certificates of the authorities to trust
	serverName string         // the name in the exporters' certificates
	selector   string         // labels of the exporters' pods
}

// readSettings reads the ConfigMap.
func (c *cluster) readSettings(ctx context.Context, name string) (*settings, error) {
	object, err := c.set.CoreV1().ConfigMaps(c.namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no ConfigMap %s in namespace %s: -n names the exporter's "+
			"namespace, --config-map its ConfigMap for kubectl mig", name, c.namespace)
	}

	if err != nil {
		return nil, c.explain(err, "get", "configmaps", name)
	}

	s := &settings{
		roots:      x509.NewCertPool(),
		serverName: strings.TrimSpace(object.Data["server-name"]),
		selector:   object.Data["selector"],
	}

	if s.selector == "" {
		s.selector = defaultSelector
	}

	if !s.roots.AppendCertsFromPEM([]byte(object.Data["ca.crt"])) {
		return nil, fmt.Errorf("ConfigMap %s/%s: ca.crt has no certificate", c.namespace, name)
	}

	if s.serverName == "" {
		return nil, fmt.Errorf("ConfigMap %s/%s: server-name is empty", c.namespace, name)
	}

	return s, nil
}

// listPods lists the exporter's pods, or those on one node unless node is empty.
func (c *cluster) listPods(ctx context.Context, selector, node string) ([]corev1.Pod, error) {
	options := metav1.ListOptions{LabelSelector: selector}
	if node != "" {
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}

	list, err := c.set.CoreV1().Pods(c.namespace).List(ctx, options)
	if err != nil {
		return nil, c.explain(err, "list", "pods", "")
	}

	return list.Items, nil
}

// findPod returns the pod of the exporter of a node.
func (c *cluster) findPod(ctx context.Context, selector, node string) (*corev1.Pod, error) {
	pods, err := c.listPods(ctx, selector, node)
	if err != nil {
		return nil, err
	}

	var running []*corev1.Pod
	var other []string

	for i := range pods {
		p := &pods[i]
		switch {
		case p.DeletionTimestamp != nil:
			other = append(other, p.Name+" is being deleted")
		case p.Status.Phase != corev1.PodRunning:
			other = append(other, fmt.Sprintf("%s is %s", p.Name, p.Status.Phase))
		default:
			running = append(running, p)
		}
	}

	switch {
	case len(pods) == 0:
		return nil, fmt.Errorf("no pod in namespace %s with the labels %s runs there: "+
			"kubectl get pods -n %s -l %s -o wide", c.namespace, selector, c.namespace, selector)
	case len(running) == 0:
		return nil, fmt.Errorf("no exporter runs in namespace %s: %s", c.namespace, strings.Join(other, ", "))
	case len(running) > 1:
		return nil, fmt.Errorf("%d exporters run there in namespace %s (%s, %s): the key selector of the "+
			"ConfigMap must select one", len(running), c.namespace, running[0].Name, running[1].Name)
	}

	return running[0], nil
}

// portOf returns the port of partition control in an exporter's pod.
func portOf(pod *corev1.Pod) (int32, error) {
	for i := range pod.Spec.Containers {
		for _, port := range pod.Spec.Containers[i].Ports {
			if port.Name == controlPort {
				return port.ContainerPort, nil
			}
		}
	}

	return 0, fmt.Errorf("pod %s/%s has no port named %s: partition control is not served over the "+
		"network (control.network.enabled of the chart)", pod.Namespace, pod.Name, controlPort)
}

// audienceOf returns the audience of tokens for a node: only the node's own exporter accepts it.
func audienceOf(node string) string { return "mig-exporter/" + node }

// token is a token of a service account.
type token struct {
	value    string
	lifetime time.Duration // from the request on
}

// requestToken asks the API server for a token of a service account for one audience.
func (c *cluster) requestToken(ctx context.Context, account, audience string) (token, error) {
	seconds := int64(tokenLifetime.Seconds())
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			Audiences:         []string{audience},
			ExpirationSeconds: &seconds,
		},
	}

	answer, err := c.set.CoreV1().ServiceAccounts(c.namespace).
		CreateToken(ctx, account, request, metav1.CreateOptions{})
	if apierrors.IsNotFound(err) {
		return token{}, fmt.Errorf("there is no service account %s in namespace %s: the chart creates it "+
			"with control.kubectl.accounts, and --service-account names another", account, c.namespace)
	}

	if err != nil {
		return token{}, c.explain(err, "create", "serviceaccounts/token", account)
	}

	if answer.Status.Token == "" {
		return token{}, fmt.Errorf("the API server has given no token of service account %s", account)
	}

	lifetime := tokenLifetime
	if s := answer.Spec.ExpirationSeconds; s != nil {
		lifetime = time.Duration(*s) * time.Second
	}

	return token{answer.Status.Token, lifetime}, nil
}

// explain is kube.Explain for a request in the exporter's namespace. name may be empty.
func (c *cluster) explain(err error, verb, resource, name string) error {
	what := resource
	if name != "" {
		what += " " + name
	}

	return kube.Explain(err, verb, what+" in namespace "+c.namespace, rightsDocs)
}
