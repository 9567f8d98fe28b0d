module github.com/mig-exporter/mig-exporter/internal/apitest

go 1.26.0

require (
	github.com/CycloneDX/cyclonedx-go v0.12.0
	github.com/go-kit/log v0.2.1
	github.com/mig-exporter/mig-exporter v0.0.0
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3
	go.yaml.in/yaml/v3 v3.0.6
)

require (
	github.com/go-logfmt/logfmt v0.6.1 // indirect
	golang.org/x/text v0.42.0 // indirect
	golang.org/x/time v0.15.0 // indirect
)

replace github.com/mig-exporter/mig-exporter => ../..
