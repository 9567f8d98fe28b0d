// Package charttest renders the Helm chart with Helm's own engine and holds what comes out: the
// manifests of deploy/manifests, rights, rules and dashboards, and the refusals. It is a module of
// its own, so that Helm is none of the product's dependencies.
package charttest
