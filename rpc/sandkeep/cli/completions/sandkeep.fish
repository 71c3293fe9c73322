# Completion of `sandkeep` for fish. What is possible is asked of the command itself; see `sandkeep completion --help` for
# how to install this.

function __sandkeep
    set -lx _SANDKEEP_COMPLETE fish
    for line in (command sandkeep (commandline -cp | string collect) 2>/dev/null)
        set -l piece (string split -m 1 \t -- $line)
        switch $piece[1]
            case word part
                echo $piece[2]
            case file
                __fish_complete_path (commandline -ct)
            case directory
                __fish_complete_directories (commandline -ct)
        end
    end
end

complete --command sandkeep --no-files --arguments '(__sandkeep)'
