package kubeapi

import (
	"net/http"
	"strings"
)

// requiredRight returns the right that the request needs, as a ClusterRole names it: the verb and
// the resource with its group, such as "get resourceclaims.resource.k8s.io". For a path that names
// no resource it is the verb and the path, such as "get /version".
//
// https://kubernetes.io/docs/reference/access-authn-authz/authorization/#determine-the-request-verb
func (r Request) requiredRight() string {
	resource, named := resourceOf(r.Path)
	if resource == "" {
		return strings.ToLower(r.Method) + " " + r.Path
	}

	verb := strings.ToLower(r.Method)
	switch {
	case r.Method == http.MethodGet && !named:
		verb = "list"
	case r.Method == http.MethodPost:
		verb = "create"
	case r.Method == http.MethodPut:
		verb = "update"
	}

	return verb + " " + resource
}

// resourceOf returns the resource that a path names, empty if it names none, and whether it names
// an object of the resource. Paths of resources are /api/v1/... and /apis/GROUP/VERSION/...,
// followed by [namespaces/NAMESPACE/]RESOURCE[/NAME[/SUBRESOURCE]].
func resourceOf(path string) (resource string, named bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	group := ""

	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		group = "." + parts[1]
		parts = parts[3:]
	default:
		return "", false
	}

	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}

	resource = parts[0] + group
	if len(parts) > 2 {
		resource += "/" + strings.Join(parts[2:], "/")
	}

	return resource, len(parts) > 1
}
