package main

import (
	"strings"
	"unicode"

	"github.com/alecthomas/kingpin/v2"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mig-exporter/mig-exporter/cmd/internal/migctl"
	"github.com/mig-exporter/mig-exporter/internal/usage"
)

const (
	// defaultNamespace is the namespace in which the docs install the exporter. We don't use the
	// kubeconfig context's, which is for the operator's other work.
	defaultNamespace = "mig-exporter"
	// defaultConfigMap is the name that the Helm chart gives its ConfigMap in a release
	// "mig-exporter".
	defaultConfigMap = "mig-exporter-kubectl"
)

// flags are the plugin's own flags.
type flags struct {
	kubeconfig     string
	overrides      clientcmd.ConfigOverrides
	configMap      string
	serviceAccount string

	kubernetes *pflag.FlagSet // kubectl's flags, which set kubeconfig and overrides
}

// newFlags returns flags, with kubectl's flags as client-go declares them.
func newFlags() *flags {
	f := &flags{kubernetes: pflag.NewFlagSet("kubectl", pflag.ContinueOnError)}
	f.kubernetes.StringVar(&f.kubeconfig, "kubeconfig", "", "Path of the kubeconfig file.")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	// We leave this flag out: an attacker in the place of the API server could give us a ConfigMap
	// with another authority for the exporters.
	names.ClusterOverrideFlags.InsecureSkipTLSVerify = clientcmd.FlagInfo{}
	clientcmd.BindOverrideFlags(&f.overrides, f.kubernetes, names)

	return f
}

// declare declares the flags.
func (f *flags) declare(app *kingpin.Application) {
	f.kubernetes.VisitAll(func(flag *pflag.Flag) {
		declared := app.Flag(flag.Name, sentence(flag.Usage))
		if flag.Shorthand != "" {
			declared.Short(rune(flag.Shorthand[0]))
		}

		if flag.Name == clientcmd.FlagNamespace {
			declared.Help("The exporter's namespace, by default " + defaultNamespace + ".").
				Envar("KUBECTL_MIG_NAMESPACE")
		}

		declared.SetValue(kingpinValue{flag.Value, f.kubernetes, flag.Name})
	})

	app.Flag("config-map", "ConfigMap in the exporter's namespace with the certificates to trust "+
		"(ca.crt) and the name in the exporter's certificate (server-name). Its name also begins "+
		"those of the service accounts: NAME-get, NAME-apply.").
		Default(defaultConfigMap).
		Envar("KUBECTL_MIG_CONFIG_MAP").
		StringVar(&f.configMap)
	app.Flag("service-account", "Service account in the exporter's namespace whose token is asked "+
		"for; by default that of the right which the command needs, such as "+defaultConfigMap+"-get.").
		Envar("KUBECTL_MIG_SERVICE_ACCOUNT").
		StringVar(&f.serviceAccount)
}

// groups returns the groups of the flags in --help.
func (f *flags) groups() []usage.Group {
	cluster := usage.Group{Title: "Cluster, as kubectl has them"}
	f.kubernetes.VisitAll(func(flag *pflag.Flag) { cluster.Names = append(cluster.Names, flag.Name) })

	return []usage.Group{
		{
			Title: "Nodes",
			Names: []string{"config-map", "service-account", "all", "parallel"},
		},
		{Title: "Runs over many nodes", Names: runFlagNames()},
		cluster,
	}
}

// prefix returns the beginning of a command line that reaches the same nodes: the program's name and
// the flags that say where they are. It leaves out secrets.
func (f *flags) prefix() string {
	words := []string{programName}
	add := func(name, value string) { words = append(words, migctl.QuoteForShell("--"+name+"="+value)) }

	f.kubernetes.Visit(func(flag *pflag.Flag) {
		if flag.Name == clientcmd.FlagBearerToken || flag.Name == clientcmd.FlagPassword {
			return
		}

		if list, ok := flag.Value.(pflag.SliceValue); ok {
			for _, value := range list.GetSlice() {
				add(flag.Name, value)
			}

			return
		}

		add(flag.Name, flag.Value.String())
	})

	if f.configMap != defaultConfigMap {
		add("config-map", f.configMap)
	}

	if f.serviceAccount != "" {
		add("service-account", f.serviceAccount)
	}

	return strings.Join(words, " ")
}

// sentence returns client-go's help of a flag as a sentence with a capital and a period.
func sentence(s string) string {
	r := []rune(strings.TrimSuffix(s, "."))
	if len(r) == 0 {
		return ""
	}

	r[0] = unicode.ToUpper(r[0])

	return string(r) + "."
}

// kingpinValue is the value of one of kubectl's flags, for kingpin.
type kingpinValue struct {
	pflag.Value
	set  *pflag.FlagSet
	name string
}

// Set sets the flag, which then counts as given.
func (v kingpinValue) Set(s string) error { return v.set.Set(v.name, s) }

// IsBoolFlag reports whether the flag needs no value.
func (v kingpinValue) IsBoolFlag() bool { return v.Type() == "bool" }

// IsCumulative reports whether the flag can be given several times.
func (v kingpinValue) IsCumulative() bool { return v.Type() == "stringArray" }
