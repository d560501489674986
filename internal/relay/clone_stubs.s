// The declarations in clone_unsafe.go without a body are the runtime's; a
// package needs an assembly file to have such declarations.
