"""The command line with a daemon that kills itself behind one step of publishing one file: STEP STEM run CONFIG."""

import os
import signal
import sys

from daemon import cli, outbox


def main():
    step, stem = sys.argv[1:3]
    publish = outbox.Publisher.publish

    def publish_until_step(publisher):
        def die(done):
            if done == step and publisher._names.stem == stem:
                os.kill(os.getpid(), signal.SIGKILL)

        publisher._after_step = die
        return publish(publisher)

    outbox.Publisher.publish = publish_until_step
    return cli.main(sys.argv[3:])


if __name__ == "__main__":
    sys.exit(main())
