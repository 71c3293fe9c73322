# Copies between a sandbox and the world, as streams.   sh -c THIS sh send|receive PATH whole|contents|bytes TOKEN LEVELS
#
# It runs inside, as the sandbox's own user. Descriptor 3 is the stream, 4 is where it is told what to do. What it says:
#   ready                       both are open
#   staged KIND FILES BYTES     receive: all has arrived beside its target. `commit` makes it effective, all else undoes it
#   done KIND FILES BYTES PATH  the end; PATH is the rest, and has no newline after it
# `whole` streams are archives of one file or tree, under its name; streams of `contents`, archives of what is in a
# directory; streams of `bytes` are no archives, but one file's own content. Trees with LEVELS levels of names are too deep.
export LC_ALL=C
unset TAR_OPTIONS POSIXLY_CORRECT
echo ready
case $2 in /*) path=$2 ;; *) path=./$2 ;; esac
what=$3 stage=''
passing=.sandkeep-hlp_?????????????????????????? # what other copies have under way is nobody's file yet
case $path in */ | */. | */..) directory=1 ;; *) directory='' ;; esac

refuse() {
	printf '%s\n' "$1" >&2
	exit 1
}

exists() { [ -e "$1" ] || [ -L "$1" ]; }
is_tree() { [ -d "$1" ] && ! [ -L "$1" ]; }
gnu_tar() { case $(tar --version 2>&1) in *GNU*) ;; *) return 1 ;; esac; }

# Counts the entries below a path, itself included, and the bytes of the regular files among them.
measure() {
	files=0 bytes=0 kind=file
	is_tree "$1" && kind=tree
	for entry in $(find "$1" -name "$passing" -prune -o -exec stat -c '%f:%s' -- {} + 2>/dev/null); do
		files=$((files + 1))
		case $entry in 8*) bytes=$((bytes + ${entry#*:})) ;; esac
	done
}

# Refuses a tree with paths of more names than $1: most programs take quadratic time for it, or cannot name its end.
shallow() {
	[ -z "$(find "$2" -mindepth "$1" -maxdepth "$1" 2>&5 | head -c 1)" ] ||
		refuse "Too deep: there are more than $(($1 - 1)) levels of directories: remove or flatten them"
}

send() {
	exists "$path" || refuse 'No such file or directory'
	if [ "$what" = bytes ]; then
		[ -f "$path" ] || refuse 'Is not a regular file'
		cat -- "$path" >&3 || exit 1
		exec 3>&-
		measure "$path"
		printf 'done %s %s %s %s' "$kind" "$files" "$bytes" "$path"
		return
	fi
	if [ "$what$directory" != whole ]; then
		[ -d "$path" ] || refuse 'Not a directory'
		cd -P -- "$path" || refuse 'Permission denied'
		full=$PWD name=.
		if [ "$what" = whole ]; then
			[ "$full" != / ] || refuse 'Invalid argument: the root directory has no name: copy its contents'
			name=./${full##*/}
			cd .. || refuse 'Permission denied'
		fi
	else
		[ -f "$path" ] || [ -d "$path" ] || [ -L "$path" ] || [ -p "$path" ] ||
			refuse 'Invalid argument: it is a device or a socket, and only files, directories, links and FIFOs are copied'
		name=./${path##*/} full=${path%/*}
		cd -P -- "$full/" || refuse 'Permission denied'
		full=${PWD%/}/${path##*/}
	fi
	shallow "$levels" "$name"
	if gnu_tar; then
		tar --create --file=- --format=gnu --sparse --numeric-owner --blocking-factor=128 --no-unquote \
			--exclude="$passing" "$name" >&3
	else
		tar -cf - "$name" >&3
	fi
	case $? in 0 | 1) ;; *) exit 1 ;; esac # 1: a file changed while it was read
	exec 3>&-
	measure "$name"
	printf 'done %s %s %s %s' "$kind" "$files" "$bytes" "$full"
}

# The removal is in no group of the daemon's: it goes on when the rest is killed because it takes long.
undo() {
	trap '' INT TERM HUP # it may be told twice to go
	[ -z "$stage" ] || $(command -v setsid >&5 && echo setsid) sh -c 'rm -rf -- "$0" && exit
		find "$0" -type d ! -perm -700 -exec chmod u+rwx {} \;
		rm -rf -- "$0"' "$stage" >&5 2>&5 3>&- 4>&-
}

unpack() {
	if [ "$what" = bytes ]; then
		[ -z "$into$directory" ] || refuse 'Is not a regular file'
		cat <&3 >"$stage/tree/${full##*/}" || return
		[ ! -e "./${full##*/}" ] || chmod "$(stat -c %a -- "./${full##*/}")" -- "$stage/tree/${full##*/}"
	elif gnu_tar; then
		tar --extract --file=- --preserve-permissions --no-same-owner --numeric-owner --warning=no-timestamp \
			--blocking-factor=128 --directory="$stage/tree" <&3
	else
		tar -xof - -C "$stage/tree" <&3
	fi
}

# The one entry of a whole: what arrived under any other number of names was not made by us.
only_entry() {
	top=''
	for entry in "$stage"/tree/* "$stage"/tree/.[!.]* "$stage"/tree/..?*; do
		exists "$entry" || continue
		[ -z "$top" ] || refuse 'Invalid argument: the archive holds more than one file or tree at its top'
		top=$entry
	done
	[ -n "$top" ] || refuse 'Invalid argument: the archive is empty'
}

# A socket, a FIFO or a device is not replaced by something else: whoever names one means what it leads to.
may_go() { ! [ -e "$dest" ] || [ -f "$dest" ] || [ -L "$dest" ] || { [ -p "$dest" ] && [ -p "$top" ]; }; }

# Says what is in the way of merging $top into $dest, if anything is.
obstacle() {
	find "$top" -exec sh -c '
		top=$1 dest=$2
		shift 2
		for entry do
			there=$dest${entry#"$top"} shown=$PWD/$dest${entry#"$top"}
			if [ -d "$entry" ] && ! [ -L "$entry" ]; then
				if [ -d "$there" ] && ! [ -L "$there" ]; then
					[ -w "$there" ] || { echo "Permission denied: $shown"; exit; }
				elif [ -e "$there" ] || [ -L "$there" ]; then
					echo "Conflict: $shown is there, and is not a directory"
					exit
				fi
			elif [ -d "$there" ] && ! [ -L "$there" ]; then
				echo "Conflict: $shown is there, and is a directory"
				exit
			elif [ -e "$there" ] && ! [ -f "$there" ] && ! [ -L "$there" ] && ! { [ -p "$entry" ] && [ -p "$there" ]; }; then
				echo "Conflict: $shown is there, and is neither a file nor a link"
				exit
			fi
		done' sh "$top" "$dest" {} +
}

# Each file is linked under a passing name and renamed over what is there, so nobody sees half of one. Only its owner may set
# the times of a directory, which that of a pod's volume is not.
merge() {
	found=$(obstacle) || exit 1
	[ -z "$found" ] || refuse "$found"
	if [ -O "$dest" ]; then
		mode=$(stat -c %a -- "$dest")
		cp -alfT -- "$top" "$dest" || exit 1
		chmod "$mode" -- "$dest"
		return
	fi
	for entry in "$top"/* "$top"/.[!.]* "$top"/..?*; do
		! exists "$entry" || cp -alf -- "$entry" "$dest/" || exit 1
	done
}

# A directory is moved only by who may write to it.
move_tree() {
	mode=''
	[ -w "$top" ] || { mode=$(stat -c %a -- "$top") && chmod u+rwx -- "$top"; }
	mv -T -- "$top" "$dest" || return
	[ -z "$mode" ] || chmod "$mode" -- "$dest"
}

make_effective() {
	if is_tree "$top"; then
		exists "$dest" || move_tree || is_tree "$dest" || exit 1
		is_tree "$top" || return 0 # it was moved
		is_tree "$dest" || refuse "Conflict: $full is there, and is not a directory"
		merge
	else
		is_tree "$dest" && refuse "Conflict: $full is there, and is a directory"
		may_go || refuse "Conflict: $full is there, and is neither a file nor a link"
		[ -z "$directory" ] || [ -n "$into" ] || refuse 'No such file or directory'
		mv -fT -- "$top" "$dest" || exit 1
	fi
}

# All happens in the directory that this begins in, whatever becomes of its name meanwhile.
receive() {
	full=$(readlink -f -- "$path" && echo x) && full=${full%??} || refuse 'No such file or directory'
	if [ -d "$full" ]; then beside=$full into=1; else beside=${full%/*}/ into=''; fi
	[ -d "$beside" ] || refuse 'No such file or directory'
	[ "$what" = whole ] || [ -n "$into" ] || [ "$what" = bytes ] || ! exists "$full" || refuse 'Not a directory'
	cd -P -- "$beside" || refuse 'Permission denied'
	stage=.sandkeep-$1
	why=$(mkdir -m 700 -- "$stage" 2>&1) || { stage='' && refuse "${why##*: }"; } # its name is nobody's business
	mkdir -m 755 -- "$stage/tree" || exit 1
	unpack || { [ $? -ne 153 ] || echo 'File too large' >&2; exit 1; }
	cat <&3 >&5 # nothing is complete before the sender has closed its end
	top=$stage/tree
	shallow "$((levels + 1))" "$top"
	[ "$what" = contents ] || only_entry
	measure "$top"
	echo "staged $kind $files $bytes"
	if [ -z "$into" ]; then
		dest=./${full##*/}
	elif [ "$what" = contents ]; then
		dest=.
	else
		dest=./${top##*/} full=${full%/}/${top##*/}
	fi
	IFS= read -r word <&4 && [ "$word" = commit ] || exit 1
	trap '' INT TERM HUP
	make_effective
	printf 'done %s %s %s %s' "$kind" "$files" "$bytes" "$full"
}

exec 5>/dev/null
trap undo EXIT
trap 'undo; exit 1' INT TERM HUP
command -v tar >&5 || refuse 'Not supported: there is no tar in the sandbox'
levels=$5
"$1" "$4"
