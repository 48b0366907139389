# fish completion for dnnp
complete -c dnnp -f
complete -c dnnp -n 'test (count (commandline -opc)) -eq 1' -a import -d 'turn an ONNX model, a published workload, a graph of your own or a random one into a stream'
complete -c dnnp -n 'test (count (commandline -opc)) -eq 1' -a profile -d 'learn what every operator costs, by formula or by measuring'
complete -c dnnp -n 'test (count (commandline -opc)) -eq 1' -a coarsen -d 'group operators into the units that a split moves'
complete -c dnnp -n 'test (count (commandline -opc)) -eq 1' -a partition -d 'split a graph into pipeline stages'
complete -c dnnp -n 'test (count (commandline -opc)) -eq 1' -a bound -d 'prove how good a plan is'
complete -c dnnp -n 'test (count (commandline -opc)) -eq 1' -a export -d 'write the stages of a plan as ONNX models, or a plan in another tool\'s format'
complete -c dnnp -n 'test (count (commandline -opc)) -eq 1' -a schedule -d 'find when every stage runs every micro-batch'
complete -c dnnp -n 'test (count (commandline -opc)) -eq 1' -a run -d 'run the split on ONNX Runtime, measure it, and compare it with the whole model'
complete -c dnnp -n 'test (count (commandline -opc)) -eq 1' -a view -d 'show a plan and what is known of it: text, pictures, pages, tables, graphs'
complete -c dnnp -n 'test (count (commandline -opc)) -eq 1' -a check -d 'validate a stream and recompute its plan'
complete -c dnnp -n 'test (count (commandline -opc)) -eq 1' -a help -d 'the list of commands'
complete -c dnnp -n 'test (count (commandline -opc)) -eq 1' -l help
complete -c dnnp -n 'test (count (commandline -opc)) -eq 1' -l version
complete -c dnnp -n 'test (count (commandline -opc)) -eq 1' -l print-completion
complete -c dnnp -n "test (count (commandline -opc)) -gt 1" -a "(complete -C (string replace -r '^\s*dnnp\s+' dnnp- -- (commandline -cp)))"
