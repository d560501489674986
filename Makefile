# The whole of what a person types. `make help` lists it.
SHELL := /bin/bash
GO ?= go
PREFIX ?= /usr
DESTDIR ?=
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo development)
export CGO_ENABLED = 0

PROGRAMS := lnk lnk-relay link-sandbox-proxy lnk-supervisor
# The proxy speaks no HTTP/2, and the code for it weighs 0.6 MiB in every sandbox.
TAGS := nethttpomithttp2
LDFLAGS := -s -w -X link.internal/lnk/internal/cli.Version=$(VERSION) -X link.internal/lnk/internal/supervisor.Version=$(VERSION)

.PHONY: help build install deb rpm packages demo tools test root-test test-all check fuzz bench clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

build: ## build lnk and its sisters into bin/
	$(GO) build -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)' -o bin/ $(PROGRAMS:%=./cmd/%)

install: build ## install to $(PREFIX), as root
	install -D -m 755 bin/lnk $(DESTDIR)$(PREFIX)/bin/lnk
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/lib/lnk bin/lnk-relay bin/link-sandbox-proxy

ARCHES ?= amd64 arm64
# Of a tag v1.2.3 it is that; else 0.0.0 with the commit, which sorts before it.
PACKAGE_VERSION ?= $(shell git describe --tags --match 'v[0-9]*' 2>/dev/null | sed 's/^v//' | grep . || echo 0.0.0~git$$(git log -1 --format=%cd.%h --date=format:%Y%m%d 2>/dev/null))

deb: ## build Debian packages into dist/
	@$(MAKE) --no-print-directory packages PACKAGER=deb

rpm: ## build RPM packages into dist/
	@$(MAKE) --no-print-directory packages PACKAGER=rpm

packages:
	$(GO) run ./packaging/generate dist/generated '$(PACKAGE_VERSION)'
	@set -e; for arch in $(ARCHES); do \
	  GOARCH=$$arch $(GO) build -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)' -o dist/build/ $(PROGRAMS:%=./cmd/%); \
	  for package in lnk lnk-supervisor; do \
	    ARCH=$$arch VERSION='$(PACKAGE_VERSION)' $(GO) tool -modfile=tools/go.mod nfpm package -f packaging/nfpm/$$package.yaml -p $(PACKAGER) -t dist/; done; done

demo: ## show a sandbox at work, without an internet
	./integration/demo.sh

tools: ## install what the tests need: bubblewrap, curl and others
	./integration/install.sh

test: ## test what needs no root and no network
	$(GO) test ./internal/... ./cmd/...

root-test: build ## test whole sandboxes, as root, in namespaces of their own
	LNK_BIN=$(CURDIR)/bin $(GO) test -count=1 -timeout 20m ./integration/...
	LNK_WALL=plain LNK_BIN=$(CURDIR)/bin $(GO) test -count=1 -timeout 20m ./integration

check: ## format, vet, staticcheck, what links what
	@bad=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$bad" || { echo "not gofmt'ed: $$bad"; exit 1; }
	$(GO) vet ./...
	GOARCH=arm64 $(GO) vet ./...
	GOOS=darwin $(GO) build -o /dev/null ./cmd/lnk
	$(GO) tool -modfile=tools/go.mod staticcheck ./...

test-all: tools build check test ## set up, and pass every test
	@if [ "$$(id -u)" = 0 ]; then $(MAKE) root-test; else sudo --preserve-env=PATH,GOPATH,GOCACHE,GOFLAGS,GOPROXY $(MAKE) root-test; fi
	CGO_ENABLED=1 $(GO) test -race ./internal/...

FUZZTIME ?= 30s
fuzz: ## fuzz every parser for FUZZTIME each
	@set -e; for file in $$(grep -rlE '^func Fuzz' --include='*_test.go' internal); do \
	  for f in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' $$file | sed 's/func //'); do \
	    echo "== $$(dirname $$file) $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) ./$$(dirname $$file); done; done

bench: build ## measure, and write bench/RESULTS.md and its plots (as root)
	LNK_BIN=$(CURDIR)/bin $(GO) run ./bench
	cd bench/plot && $(GO) run . ..

clean: ## remove what was built
	rm -rf bin dist
