package web

import (
	"net/http"
	"net/http/pprof"
)

// registerPprof serves profiles from this mux. Importing net/http/pprof registers them on
// http.DefaultServeMux too, which nothing here serves.
func registerPprof(mux *http.ServeMux) {
	mux.HandleFunc("GET "+pathPprof, pprof.Index)
	mux.HandleFunc("GET "+pathPprof+"cmdline", pprof.Cmdline)
	mux.HandleFunc("GET "+pathPprof+"profile", pprof.Profile)
	mux.HandleFunc("GET "+pathPprof+"symbol", pprof.Symbol)
	mux.HandleFunc("POST "+pathPprof+"symbol", pprof.Symbol)
	mux.HandleFunc("GET "+pathPprof+"trace", pprof.Trace)
}
