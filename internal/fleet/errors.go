package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
)

// ServerError is an answer of the server with another status than 200.
type ServerError struct {
	Status int
	// Type and Message are from the answer: "execution", "query processing would ...". Type is empty
	// if the answer is not of Prometheus' API.
	Type, Message string
	retryAfter    time.Duration // 0 if the answer does not say
}

func (e *ServerError) Error() string {
	text := strconv.Itoa(e.Status)
	if name := http.StatusText(e.Status); name != "" {
		text += " " + name
	}

	if e.Message != "" {
		text += ": " + e.Message
	}

	return text
}

// foreignError is an answer that is no JSON.
type foreignError struct{ contentType string }

func (e *foreignError) Error() string {
	return fmt.Sprintf("answered with %q; expected JSON", e.contentType)
}

// errTooLong is an answer of more than maxBody bytes.
var errTooLong = errors.New("the answer is too long")

// QueryError says that the server cannot be reached, or has not answered a query.
type QueryError struct {
	URL     string // without a password
	Hint    string // what the operator can do; empty if we don't know
	Reached bool   // there was an answer
	Err     error
}

func (e *QueryError) Error() string { return fmt.Sprintf("ask Prometheus at %s: %v", e.URL, e.Err) }

func (e *QueryError) Unwrap() error { return e.Err }

// readServerError reads the error of an answer and closes it.
func readServerError(resp *http.Response) *ServerError {
	defer resp.Body.Close()
	e := &ServerError{
		Status:     resp.StatusCode,
		retryAfter: retryAfter(resp.Header.Get("Retry-After"), time.Now()),
	}

	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return e // we only know the status
	}

	var document struct{ ErrorType, Error string }
	if json.Unmarshal(body, &document) == nil {
		e.Type = document.ErrorType
		e.Message = document.Error
	} else if text := strings.TrimSpace(string(body)); !strings.HasPrefix(text, "<") {
		e.Message = text[:min(len(text), 200)]
	}

	return e
}

// retryAfter reads the header: seconds or a date. It returns 0 if there is none.
func retryAfter(header string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(header, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}

	if at, err := http.ParseTime(header); err == nil {
		return max(0, at.Sub(now))
	}

	return 0
}

// isTooMuch reports whether the server may answer a smaller query. Servers return 422 for too many
// samples, series or points.
func isTooMuch(err error) bool {
	var server *ServerError
	if errors.As(err, &server) {
		return server.Status == http.StatusUnprocessableEntity ||
			server.Status == http.StatusRequestEntityTooLarge
	}

	return errors.Is(err, errTooLong)
}

// isTransient reports whether the server may answer the same query later.
func isTransient(err error) bool {
	var server *ServerError
	if errors.As(err, &server) {
		gateway := server.Status == http.StatusBadGateway ||
			server.Status == http.StatusGatewayTimeout

		return gateway || server.Status == http.StatusServiceUnavailable && server.Type != "timeout"
	}

	var foreign *foreignError
	var broken *net.OpError

	return !errors.As(err, &foreign) && (errors.As(err, &broken) || isClosed(err))
}

// isClosed reports whether the other end closed the connection.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET)
}

const foreignHint = "check the host, the port and the path prefix of --prometheus.url."

// explain turns an error into a *QueryError, with a hint what to do about it.
func (c *Client) explain(err error) error {
	e := &QueryError{URL: c.url, Reached: true, Err: err}

	var request *url.Error
	if errors.As(err, &request) { // repeats the whole URL
		e.Err = request.Err
	}

	var server *ServerError
	var foreign *foreignError

	var answer *v1.Error
	switch {
	case errors.As(err, &server):
		e.Err = server
		e.Hint = hintOf(server)
	case errors.As(err, &foreign):
		e.Hint = "that is no Prometheus: check the host, the port, and the path prefix (--web.route-prefix, " +
			"--web.external-url); a proxy may ask for a login."
	case errors.Is(err, errTooLong):
	case errors.As(err, &answer):
		e.Err = fmt.Errorf("answered with JSON that is not of Prometheus' API: %s", answer.Msg)
		e.Hint = foreignHint
	case errors.Is(err, context.DeadlineExceeded):
		e.Err = fmt.Errorf("no answer within %s", c.timeout)
		e.Hint = "the server is slow or overloaded: ask for less with --match or --window, ask a " +
			"less busy replica, or wait longer with --timeout."
	case isClosed(err):
		// An answer that ended too early came from a server, so we reached one.
		e.Reached = errors.Is(err, io.ErrUnexpectedEOF)
		e.Err = fmt.Errorf("the connection ended before the answer did: %w", e.Err)
		e.Hint = "the server or a proxy before it may have ended the query: ask for less with --match " +
			"or --window, and see their logs. A server with TLS ends requests by http://, too."
	default:
		e.Reached = false
		e.Hint = reachHint(err)
	}

	return e
}

// hintOf says what to do about a refusal.
func hintOf(e *ServerError) string {
	if e.Status/100 == 3 {
		return "give the URL that it redirects to, without /api/v1. If that is a login, give credentials with " +
			"--prometheus.config.file."
	}

	switch e.Status {
	case http.StatusBadRequest:
		if strings.Contains(e.Message, "HTTPS server") {
			return "the server speaks TLS: try https:// in --prometheus.url."
		}

		return "the server does not know such a query: expected Prometheus 2.29 or later, or a server with its API."
	case http.StatusInternalServerError:
		return "the server failed: its log says why."
	case http.StatusBadGateway:
		return "a proxy is there, and no Prometheus behind it: check the path prefix, and whether Prometheus runs."
	case http.StatusUnauthorized, http.StatusForbidden:
		return "give credentials with --prometheus.config.file: basic_auth, authorization, oauth2 or " +
			"tls_config, as in Prometheus' own configuration."
	case http.StatusNotFound:
		return "there is no Prometheus API under this URL: it may have a path prefix, such " +
			"as http://HOST:9090/prometheus."
	case http.StatusTooManyRequests:
		return "the server stayed busy: ask again later, or for less with --match."
	case http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		if e.Type == "timeout" || e.Status == http.StatusGatewayTimeout {
			return "the query took longer than the server allows (--query.timeout there): ask for " +
				"less with --match or --window."
		}

		return "the server is not ready; it may replay its log after a start."
	case http.StatusUnprocessableEntity:
		return "the server refuses even the smallest part: raise --query.max-samples there, or ask for " +
			"less with --match or --window."
	}

	return ""
}

// reachHint says why there may be no answer.
func reachHint(err error) string {
	var dns *net.DNSError

	text := err.Error()
	switch {
	case errors.As(err, &dns):
		return "check the host name in --prometheus.url."
	case strings.Contains(text, "server gave HTTP response to HTTPS client"),
		strings.Contains(text, "first record does not look like a TLS handshake"):
		return "the server does not speak TLS: try http:// in --prometheus.url."
	case strings.Contains(text, "oauth2:"):
		return "the token comes from token_url of oauth2 in --prometheus.config.file: check " +
			"it, client_id and client_secret."
	case strings.Contains(text, "proxyconnect"):
		return "is the proxy running there? Check proxy_url in --prometheus.config.file."
	case strings.Contains(text, "tls:"), strings.Contains(text, "x509:"):
		return "check tls_config in --prometheus.config.file: ca_file for the CA that signed the " +
			"server's certificate, server_name, cert_file and key_file."
	case strings.Contains(text, "redirect"):
		return "the server redirects without an end: give the URL that it means. A login may be needed."
	}

	return "is Prometheus running there? Check --prometheus.url, and the way there."
}
