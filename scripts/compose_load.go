// Loads a compose file as `docker compose config` does, and prints it as JSON. scripts/build_kube.py builds it.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	options, err := cli.NewProjectOptions(os.Args[1:], cli.WithOsEnv, cli.WithDefaultConfigPath)
	if err == nil {
		var printed []byte
		project, failed := options.LoadProject(context.Background())
		if err = failed; err == nil {
			printed, err = project.MarshalJSON()
			fmt.Println(string(printed))
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
