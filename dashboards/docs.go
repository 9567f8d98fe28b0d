package dashboards

import (
	"bytes"
	"fmt"
	"strings"
	"text/template"
	"unicode/utf8"
)

// page is what a template of the documentation gets of a dashboard.
type page struct {
	Title, Description string
	Pictures           []picture
	Rows               []pageRow
}

// picture is a file in docs/images and its alternative text.
type picture struct{ File, Text string }

// pictures returns the pictures of the dashboard with a UID.
func pictures(uid string) []picture {
	switch uid {
	case fleetUID:
		return []picture{
			{
				"dashboards-fleet.png",
				"Counts, problems with the pods that they affect, and a table of all nodes",
			},
			{
				"dashboards-fleet-use.png",
				"Activity, idle devices with their pods, and whole GPUs for which a slice would do",
			},
		}
	case nodeUID:
		return []picture{
			{
				"dashboards-node.png",
				"A row for each GPU and slice with its pod, then slices and pods over time",
			},
		}
	case workloadUID:
		return []picture{
			{"dashboards-workloads.png", "A row for each pod, then devices by namespace"},
		}
	case rightsizingUID:
		return []picture{
			{
				"dashboards-rightsizing.png",
				"Candidates with what they would free, GPUs that stay whole with the reason, slices that should change",
			},
		}
	case healthUID:
		return []picture{
			{"dashboards-health.png", "A row for each exporter, then sources over time"},
		}
	case dcgmUID:
		return []picture{
			{
				"dashboards-node-dcgm.png",
				"A row for each GPU and instance with its pod, then activity",
			},
		}
	}

	return nil
}

type pageRow struct {
	Title     string
	Collapsed bool
	Panels    []pagePanel
}

type pagePanel struct{ Title, Description string }

// Docs executes a template with the titles and descriptions of dashboards and panels.
func Docs(text string) ([]byte, error) {
	t, err := template.New("docs").Parse(text)
	if err != nil {
		return nil, fmt.Errorf("parse the page: %w", err)
	}

	var pages []page

	for _, d := range allDashboards() {
		p := page{Title: d.title, Description: fill(d.description), Pictures: pictures(d.uid)}
		for _, r := range d.rows {
			row := pageRow{Title: r.title, Collapsed: r.collapsed}
			for _, panel := range r.panels {
				row.Panels = append(row.Panels, pagePanel{panel.title, panel.description})
			}

			p.Rows = append(p.Rows, row)
		}

		pages = append(pages, p)
	}

	var b bytes.Buffer
	err = t.Execute(&b, pages)

	return b.Bytes(), err
}

// fill breaks a text into lines of at most 100 columns, as wide as prose of the documentation is.
func fill(text string) string {
	var lines []string

	line := ""

	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > 100 {
			lines = append(lines, line)
			line = word

			continue
		}

		line = strings.TrimPrefix(line+" "+word, " ")
	}

	return strings.Join(append(lines, line), "\n")
}
