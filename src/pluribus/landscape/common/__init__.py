"""What all of the laboratory uses: networks as rows of numbers, data that is read once, figures at many points."""
