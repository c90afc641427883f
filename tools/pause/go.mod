module gamekeeper.dev/tools/pause

go 1.26
