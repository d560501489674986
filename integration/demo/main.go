// Command demo shows a sandbox at work: a real curl, run by an ordinary user,
// against the test internet. It must be run as root, with the folder of the
// built programs as its argument.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"link.internal/lnk/integration/testnet"
)

func main() { os.Exit(run()) }

func run() int {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: demo FOLDER-OF-PROGRAMS")
		return 2
	}
	bin, err := filepath.Abs(os.Args[1])
	if err != nil {
		return fail(err)
	}
	os.Args[1] = bin
	entered, code, err := testnet.Reexec(bin)
	if err != nil {
		return fail(err)
	}
	if !entered {
		return code
	}
	internet, err := testnet.New()
	if err != nil {
		return fail(err)
	}
	for _, name := range []string{"api.example", "evil.example"} {
		addr := internet.Host(name)
		internet.HTTP(addr, 80, nil)
		internet.TLS(addr, 443, nil)
	}
	if err := os.WriteFile(filepath.Join(testnet.Home, "secret.txt"), []byte("my secret\n"), 0o644); err != nil {
		return fail(err)
	}
	fmt.Println("A small internet has two sites, api.example and evil.example; the user's home has a secret.txt.")
	for _, step := range []struct {
		says string
		args []string
	}{
		{"A listed host is reached:", []string{"--internet-host", "api.example", "--", "curl", "-sS", "https://api.example/"}},
		{"Another is refused, and lnk says what would allow it:", []string{"--internet-host", "api.example", "--", "curl", "-sS", "https://evil.example/"}},
		{"Without the proxy there is no network:", []string{"--internet-host", "api.example", "--", "curl", "-sS", "--noproxy", "*", "https://evil.example/"}},
		{"The home is empty inside:", []string{"--", "cat", testnet.Home + "/secret.txt"}},
		{"What is granted is there:", []string{"--read", "secret.txt", "--", "cat", testnet.Home + "/secret.txt"}},
	} {
		fmt.Printf("\n%s\n$ lnk sandbox run %s\n", step.says, quoted(step.args))
		cmd := testnet.Command(testnet.Lnk, append([]string{"sandbox", "run"}, step.args...)...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
		if err := cmd.Run(); err != nil {
			fmt.Printf("(%v)\n", err)
		}
	}
	return 0
}

func quoted(args []string) string {
	var words []string
	for _, arg := range args {
		if strings.ContainsAny(arg, "*' ") {
			arg = "'" + arg + "'"
		}
		words = append(words, arg)
	}
	return strings.Join(words, " ")
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "demo:", err)
	return 1
}
