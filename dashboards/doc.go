// Package dashboards generates the Grafana dashboards in this folder. It defines once what panels
// share, such as variables, colors, the names of devices and the queries for them. The JSON files
// are committed and a test keeps them up to date (make dashboards rewrites them). The package has
// no dependencies and is part of no program.
package dashboards
