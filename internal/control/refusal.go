package control

import "errors"

// refusalText returns what the cluster's API server misses in a request that it has answered and
// refused, such as a right of the service account; nothing for an error that is no refusal.
func refusalText(err error) string {
	var refused interface{ Refusal() string }
	if errors.As(err, &refused) {
		return refused.Refusal()
	}

	return ""
}

// clusterText describes why the cluster gave no answer. The text of a plan must not depend on what
// exactly fails.
func clusterText(err error) string {
	if text := refusalText(err); text != "" {
		return "the cluster refuses the request: " + text
	}

	return "the cluster does not answer"
}

// clusterProblem is clusterText with the reason of a failure.
func clusterProblem(err error) string {
	if refusalText(err) != "" {
		return clusterText(err)
	}

	return clusterText(err) + " (" + reasonText(err) + ")"
}
