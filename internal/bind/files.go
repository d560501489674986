package bind

import "flag"

// RouteFiles are where the command line has the routes and keys from: no
// secret is an argument.
type RouteFiles struct {
	Routes, CallerKey, URLSecret string
}

// AddFlags defines the flags.
func (f *RouteFiles) AddFlags(fs *flag.FlagSet) {
	fs.StringVar(&f.Routes, "routes", "", "serve the routes of `FILE`, a JSON list, under /_link/")
	fs.StringVar(&f.CallerKey, "caller-key-file", "", "the `FILE` with the key that a route's calls carry")
	fs.StringVar(&f.URLSecret, "url-secret-file", "", "the `FILE` with a secret that begins the path of every route")
}
