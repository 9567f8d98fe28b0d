package control

import "errors"

// refusalText returns why the cluster's API server has refused a request, such as a right that the
// service account lacks. It returns "" for any other error, such as a timeout.
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
