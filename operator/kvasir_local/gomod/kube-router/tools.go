//go:build tools

// Package tools names the command that the local cluster builds, so that
// "go mod tidy" keeps its modules in go.mod and go.sum.
package tools

import _ "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"
