package web

import (
	"net"
	"net/netip"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// IsLoopback reports whether an address to listen on, HOST:PORT, is reached from this machine
// alone: the host is localhost or a loopback address. Other names are not resolved.
func IsLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}

	if strings.EqualFold(host, "localhost") {
		return true
	}

	ip, err := netip.ParseAddr(host)

	return err == nil && ip.Unmap().IsLoopback()
}

// Authenticates reports whether a web configuration asks every client for a password, or for a
// certificate that it verifies. A file that cannot be read does not.
func Authenticates(file string) bool {
	if file == "" {
		return false
	}

	text, err := os.ReadFile(file)
	if err != nil {
		return false
	}

	// exporter-toolkit doesn't export its parser. The other kinds of client_auth_type accept
	// clients without a certificate, or with one that any client can make.
	var config struct {
		TLS struct {
			ClientAuth string `yaml:"client_auth_type"`
		} `yaml:"tls_server_config"`
		Users map[string]string `yaml:"basic_auth_users"`
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		return false
	}

	return len(config.Users) > 0 || config.TLS.ClientAuth == "RequireAndVerifyClientCert"
}
