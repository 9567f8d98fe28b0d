package migctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/alecthomas/kingpin/v2"
)

// addExporterURLFlag declares --url of a command that only reads: the exporter's metrics listener serves
// what it shows, too, and needs neither partition control nor rights on the node.
func addExporterURLFlag(c *kingpin.CmdClause, o *options) {
	if o.program != nil {
		return
	}

	c.Flag("url", "Ask the exporter's metrics listener (--web.listen-address) instead of its control "+
		"API: http://HOST:PORT or https://HOST:PORT, such as "+defaultURL+". Needs no partition control. "+
		"MIGCTL_URL counts only if there is neither --address nor a control socket.").
		PlaceHolder("URL").
		IsSetByUser(&o.urlGiven).
		Envar("MIGCTL_URL").
		StringVar(&o.ExporterURL)
}

// urlName names --url in messages about its value.
const urlName = "--url (or MIGCTL_URL)"

// newListenerClient returns a client of the metrics listener at --url. A control socket is --address: what a
// listener does not serve, such as operations, would be left out.
func newListenerClient(o *options) (*client, error) {
	if nodes := strings.Fields(o.ExporterURL); len(nodes) > 1 && !o.urlGiven {
		return nil, usageError{fmt.Sprintf("MIGCTL_URL names %d nodes, and migctl %s asks one: name it with --url",
			len(nodes), o.Command)}
	}

	if _, ok := socketPath(o.ExporterURL); ok {
		return nil, usageError{fmt.Sprintf("%s %q is a socket: expected http://HOST:PORT or https://HOST:PORT; "+
			"--address takes a control socket", urlName, o.ExporterURL)}
	}

	return newExporterClient(o, o.ExporterURL)
}

// checkURL decides whether a command asks the metrics listener. MIGCTL_URL, which migctl top follows, may
// name another node than the one whose layout migctl apply changes: it counts only if there is no control
// API to ask. exists reports whether there is a file.
func (o *options) checkURL(exists func(path string) bool) error {
	switch {
	case o.ExporterURL == "":
	case o.urlGiven && o.addressGiven:
		return usageError{"--url and --address: expected one of them"}
	case o.urlGiven:
	case o.addressGiven, o.Address != defaultAddress, exists(strings.TrimPrefix(defaultAddress, "unix://")):
		o.ExporterURL = ""
	}

	return nil
}

// fileExists reports whether there is a file, or may be one: it is in a folder that is closed to us.
func fileExists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// listenerHint says that a command that found no control API needs none; empty if it does.
func (o *options) listenerHint() string {
	switch {
	case o.program != nil || o.ExporterURL != "":
		return ""
	case o.Command == commandGet, o.Command == commandRecommend, o.Command == commandProfiles:
		return " Without partition control: migctl " + o.Command + " --url=" + defaultURL
	}

	return ""
}
