"""`python -m conquiet`: the same as the command `conquiet`."""

from conquiet.cli import main

if __name__ == "__main__":
    main()
