# fish completion for dnnp-view
complete -c dnnp-view -s h -l help -d 'show this help message and exit'
complete -c dnnp-view -l as -x -a 'text svg html dot graphml trace onnx csv tsv md' -d 'text: tables and charts for a terminal'
complete -c dnnp-view -s o -l output -r -F -d 'write to FILE, as a whole or not at all'
complete -c dnnp-view -s q -l quiet -d 'only warnings and errors'
complete -c dnnp-view -s v -l verbose -d 'say more on stderr'
complete -c dnnp-view -l timings -d 'put the time that this took into the header'
complete -c dnnp-view -l version -d 'print the version and exit'
complete -c dnnp-view -l print-completion -x -a 'bash zsh fish tcsh' -d 'print a completion script for bash, zsh, fish or tcsh and exit'
