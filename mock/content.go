// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package mock

import (
	"errors"
	"fmt"
	"os"

	"github.com/containerd/continuity/fs"
)

// makeContent puts a volume's content at path: a copy of the source's, where
// there is one.
func makeContent(path, source string, v *volume) error {
	if source != "" {
		if err := copyContent(path, source, v.Block); err != nil {
			return err
		}
	} else if err := makeEmpty(path, v.Block); err != nil {
		return err
	}
	if v.Block {
		return os.Truncate(path, v.Capacity)
	}
	return nil
}

func makeEmpty(path string, block bool) error {
	if block {
		file, err := os.Create(path)
		if err != nil {
			return err
		}
		return file.Close()
	}
	// Any user in a pod may write, whatever the umask: a volume without fsGroup
	// would be of no use to most pods otherwise.
	const anyUser = 0o777
	return errors.Join(os.Mkdir(path, anyUser), os.Chmod(path, anyUser))
}

// copyContent copies owners, modes, links and holes as well.
func copyContent(target, source string, block bool) error {
	var err error
	if block {
		err = fs.CopyFile(target, source)
	} else {
		err = fs.CopyDir(target, source)
	}
	if err != nil {
		return fmt.Errorf("copying %s: %w", source, err)
	}
	return nil
}
