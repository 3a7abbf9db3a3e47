module farpool.dev/farpool

go 1.26.0
